// One rank's part in a step program (collective/program.h), over any way of moving messages: round by round, all of a
// round's sends and receives at once, then its reductions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/collective/count.h"
#include "lockstep/collective/program.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Memory that programs need beside the caller's, kept from call to call.
class Workspace {
 public:
  using Memory = std::shared_ptr<std::vector<char>>;

  // At least so many bytes; what they held is lost.
  char* scratch(int64_t bytes) { return grown(scratch_, bytes); }
  char* operands(int64_t bytes) { return grown(operands_, bytes); }
  char* input(int64_t bytes) { return grown(input_, bytes); }
  std::vector<Memory> memories() const { return {scratch_, operands_, input_}; }

 private:
  static char* grown(Memory& memory, int64_t bytes);

  Memory scratch_, operands_, input_;  // operands: what is to be added; input: of an all_to_all in place
};

// Starts the messages, whose peers are ranks of the group, and returns when all are through. None is empty; those
// between two ranks arrive in order.
using Exchange = std::function<void(std::span<const Message> messages)>;

//   sizes    elements of each piece (piece_sizes_of)
//   returns  what was sent and received: equal to collective::count, and counted while it happened
//   throws   what `exchange` throws
collective::Traffic run_program(const collective::Program& program, std::span<const int64_t> sizes, const Call& call,
                                int rank, Workspace& workspace, const Exchange& exchange);

}  // namespace lockstep::comm
