// One function per schedule, for the list in generators.cc: what `make` of it is.
#pragma once

#include "lockstep/schedule/generators.h"

namespace lockstep::schedule {

Table naive(const Shape& shape);
Table gpipe(const Shape& shape);
Table one_forward_one_backward(const Shape& shape);
Table interleaved(const Shape& shape);
Table looped_breadth_first(const Shape& shape);
Table zero_bubble_h1(const Shape& shape);
Table zero_bubble_h2(const Shape& shape);
Table interleaved_zero_bubble(const Shape& shape);
Table zero_bubble_v(const Shape& shape);
Table dualpipe_v(const Shape& shape);

// Forwards before the steady state.
int interleaved_warm_up(const Shape& shape, int rank);

}  // namespace lockstep::schedule
