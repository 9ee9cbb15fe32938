// What an action of a table needs, and where in the table that stands: the rules of data flow that the validator, the
// passes and the simulator share.
//
//   F(s,m)       F(s-1,m)                     R(s,m)   F(s,m)
//   B|I(s,m)     F(s,m), R(s,m), B|I(s+1,m)   W(s,m)   I(s,m)
//   SEND_F(s,m)  F(s,m)                       SEND_B(s,m)  B|I(s,m)
//   RECV_F(s,m)  SEND_F(s-1,m)                RECV_B(s,m)  SEND_B(s+1,m)
//
// Between stages of different ranks the input comes in a message. In a table of computing alone the message is implied:
// it leaves when the producer ends.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

struct Place {
  int rank = -1;
  int position = -1;  // in the rank's list
  auto operator<=>(const Place&) const = default;
};

// Finds the actions of a table that belong to a stage; optimizer_step, which does not, is not in it. Of an action that
// stands twice it finds the first.
class Index {
 public:
  explicit Index(const Table& table);  // keeps a reference

  std::optional<Place> find(const Action& action) const;
  bool has(const Action& action) const { return find(action).has_value(); }
  const Table& table() const { return table_; }

 private:
  const Table& table_;
  std::unordered_map<uint64_t, Place> places_;
};

// The action that makes the gradient of the stage's input: backward, or input_grad where the table has that instead.
Action input_gradient_of(int stage, int microbatch, const Index& index);

// The actions of the table on the same rank that have to end before `action` begins, but for those of sharding.
std::vector<Action> needs_on_rank(const Action& action, const Index& index);

// The computing on another rank whose output `action` consumes, and the message that brings it.
struct Message {
  Action producer;  // forward, backward or input_grad
  Action send;      // as the table has it, or would have it if communication were added
  Action receive;
};
std::optional<Message> message_to(const Action& action, const Index& index);

// The message that carries what `action` makes, if another rank needs it.
std::optional<Message> message_from(const Action& action, const Table& table);

// The rank that sends or receives the other end of a send or receive.
int peer_of(const Action& communication, const Table& table);
// The other end: the receive of a send and the send of a receive.
Action other_end(const Action& communication);

}  // namespace lockstep::schedule
