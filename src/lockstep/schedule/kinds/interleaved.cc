// Interleaved 1F1B: v chunks per rank, micro-batches in groups of K that visit the chunks in turn. Filling and draining
// take 1/v of the time. The warm-up is two forwards longer for each rank further from the last, which leaves a message
// the time to come back.
//   source   Narayanan et al. 2021 (Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM)
#include <algorithm>

#include "lockstep/schedule/kinds/alternate.h"
#include "lockstep/schedule/kinds/kinds.h"

namespace lockstep::schedule {

int interleaved_warm_up(const Shape& shape, int rank) {
  return std::min(shape.chunks * shape.microbatches, 2 * (shape.ranks - 1 - rank) + (shape.chunks - 1) * shape.ranks);
}

Table interleaved(const Shape& shape) {
  if (shape.chunks == 1) return one_forward_one_backward(shape);
  return table_of(shape, Placement::loop, [&](int rank) {
    return alternate({.forwards = forwards_by_group(shape, rank, shape.ranks),
                      .backwards = backwards_by_group(shape, rank, shape.ranks),
                      .warm_up = interleaved_warm_up(shape, rank)});
  });
}

}  // namespace lockstep::schedule
