// 1F1B: rank r starts backwards after K-1-r forwards, as soon as there can be a gradient. As long as GPipe, but at most
// K-r micro-batches are alive.
//   source   Narayanan et al. 2019 (PipeDream), 2021 (PipeDream-Flush)
#include "lockstep/schedule/kinds/alternate.h"
#include "lockstep/schedule/kinds/kinds.h"

namespace lockstep::schedule {

Table one_forward_one_backward(const Shape& shape) {
  return table_of(shape, Placement::loop, [&](int rank) {
    return alternate({.forwards = forwards_by_chunk(shape, rank),
                      .backwards = backwards_by_group(shape, rank, shape.microbatches),
                      .warm_up = shape.ranks - 1 - rank});
  });
}

}  // namespace lockstep::schedule
