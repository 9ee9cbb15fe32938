// Each micro-batch forward and backward through all stages before the next begins: one rank computes at a time. On one
// rank this is gradient accumulation.
#include "lockstep/schedule/kinds/alternate.h"
#include "lockstep/schedule/kinds/kinds.h"

namespace lockstep::schedule {

Table naive(const Shape& shape) {
  return table_of(shape, Placement::loop, [&](int rank) {
    return alternate({.forwards = forwards_by_group(shape, rank, 1), .backwards = backwards_by_group(shape, rank, 1)});
  });
}

}  // namespace lockstep::schedule
