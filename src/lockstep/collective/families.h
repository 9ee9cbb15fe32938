// The makers behind algorithms(), by family. Each takes a shape that its check accepts.
#pragma once

#include "lockstep/collective/program.h"

namespace lockstep::collective {

namespace ring {
Program broadcast(const Shape& shape);
Program reduce(const Shape& shape);
Program all_reduce(const Shape& shape);
Program reduce_scatter(const Shape& shape);
Program all_gather(const Shape& shape);
}  // namespace ring

}  // namespace lockstep::collective
