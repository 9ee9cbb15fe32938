// All forwards, then all backwards. With several chunks per rank it is breadth-first: all micro-batches through a chunk
// before the rank's next.
//   source   Huang et al. 2019 (GPipe); Lamy-Poirier 2022 (Breadth-First Pipeline Parallelism)
#include "lockstep/schedule/kinds/alternate.h"
#include "lockstep/schedule/kinds/kinds.h"

namespace lockstep::schedule {

Table looped_breadth_first(const Shape& shape) {
  return table_of(shape, Placement::loop, [&](int rank) {
    return alternate({.forwards = forwards_by_chunk(shape, rank),
                      .backwards = backwards_by_chunk(shape, rank),
                      .warm_up = shape.chunks * shape.microbatches});
  });
}

Table gpipe(const Shape& shape) {
  return looped_breadth_first(shape);  // of one chunk
}

}  // namespace lockstep::schedule
