// One collective call on values that every rank can compute for all ranks, so that each value of its result is checked.
// What is timed is the call alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::measure {

struct CallShape {
  comm::Operation operation =
      comm::Operation::all_reduce;  // send: to the next rank while receiving from the one before
  comm::DataType type = comm::DataType::f32;
  comm::Reduction reduction = comm::Reduction::sum;  // of operations that reduce
  int root = 0;                                      // of operations that have one
  // Elements of the vector (all_reduce, broadcast, reduce, send), else of one rank's block, for all_to_all of what one
  // rank sends to another.
  int64_t count = 1;
};

// "sendrecv" for send, as nccl-tests calls it; otherwise comm's name.
std::string_view name_of(comm::Operation operation);
// Whether `count` is of one rank's block.
bool deals_in_blocks(comm::Operation operation);
// Bytes of the longest buffer of a rank: nccl-tests' size.
int64_t bytes_of(const CallShape& shape, int ranks);
// The smallest count whose bytes_of are at least `bytes`; at least 1.
int64_t count_for(int64_t bytes, const CallShape& shape, int ranks);
// Bus bandwidth over algorithm bandwidth, which is bytes_of over time. The bus bandwidth is what a link must carry
// whatever the number of ranks: 2 (p-1)/p for all_reduce, 1 for broadcast, reduce and sendrecv, (p-1)/p for the others.
//   source   nccl-tests, doc/PERFORMANCE.md
double bus_factor(comm::Operation operation, int ranks);

// Memory of a rank for calls of up to `bytes`: two blocks that peers reach without a copy.
struct CallMemory {
  CallMemory(comm::ProcessGroup& group, int64_t bytes) : first(group.allocate(bytes)), second(group.allocate(bytes)) {}
  comm::Registered first, second;
};

// On one rank; every rank of the group makes the same.
class KnownCall {
 public:
  //   in_place   one memory for a rank's block in input and output. all_reduce and broadcast always work in place: out
  //              of place they are a copy to the output and then the call, as a caller who keeps the input must do
  //   algorithm  as CallOptions takes it
  KnownCall(comm::ProcessGroup& group, const CallShape& shape, bool in_place, std::string_view algorithm,
            const CallMemory& memory);

  // Input to the known values, output to others that are never right.
  void fill();
  void run();
  // Elements of this rank's output that are wrong after fill() and run(). Sums are of few small whole numbers, so that
  // they are exact in every type and order; an average may be off by one rounding.
  int64_t wrong() const;

 private:
  void place_buffers(bool in_place, const CallMemory& memory);
  int64_t expected(int64_t i) const;
  int64_t reduced(int64_t i) const;
  void send_around();

  comm::ProcessGroup& group_;
  const CallShape shape_;
  const std::string algorithm_;
  const int rank_, ranks_;
  comm::Buffer input_, output_;  // counts are 0 where they are not looked at
  bool copies_first_ = false;
  comm::Call call_;
};

}  // namespace lockstep::measure
