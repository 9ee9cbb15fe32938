// Zero bubble: the backward is split. Only the input gradient is what the stage before waits for; the weight gradient
// comes later and fills what were bubbles. H1 holds as many micro-batches on every rank as 1F1B does on the first, H2
// about twice as many and has no bubble inside a rank's span. Interleaved is H1 with v chunks (for v = 1 the two are
// the same).
//   source   Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 2
#include <algorithm>

#include "lockstep/schedule/kinds/alternate.h"
#include "lockstep/schedule/kinds/kinds.h"

namespace lockstep::schedule {

namespace {

// h * (K-1-r) forwards, then F I W in turn, W of the micro-batch h * r before.
Table handcrafted(const Shape& shape, int h) {
  return table_of(shape, Placement::loop, [&](int rank) {
    return alternate({.forwards = forwards_by_chunk(shape, rank),
                      .backwards = backwards_by_group(shape, rank, shape.microbatches),
                      .warm_up = h * (shape.ranks - 1 - rank),
                      .weight_lag = h * rank});
  });
}

}  // namespace

Table zero_bubble_h1(const Shape& shape) {
  return handcrafted(shape, 1);
}

Table zero_bubble_h2(const Shape& shape) {
  return handcrafted(shape, 2);
}

Table interleaved_zero_bubble(const Shape& shape) {
  return table_of(shape, Placement::loop, [&](int rank) {
    return alternate({.forwards = forwards_by_group(shape, rank, shape.ranks),
                      .backwards = backwards_by_group(shape, rank, shape.ranks),
                      .warm_up = (shape.chunks - 1) * shape.ranks + shape.ranks - 1 - rank,
                      .weight_lag = rank});
  });
}

}  // namespace lockstep::schedule
