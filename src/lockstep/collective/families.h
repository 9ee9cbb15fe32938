// The makers behind algorithms(), by family. Each takes a shape that its check accepts.
#pragma once

#include "lockstep/collective/program.h"

namespace lockstep::collective {

namespace naive {
Program broadcast(const Shape& shape);
Program reduce(const Shape& shape);
Program all_reduce(const Shape& shape);
Program reduce_scatter(const Shape& shape);
Program all_gather(const Shape& shape);
Program scatter(const Shape& shape);
Program gather(const Shape& shape);
Program all_to_all(const Shape& shape);
}  // namespace naive

namespace direct {
Program all_reduce(const Shape& shape);
Program all_reduce_whole(const Shape& shape);
Program reduce_scatter(const Shape& shape);
Program all_gather(const Shape& shape);
Program all_to_all(const Shape& shape);
}  // namespace direct

namespace binomial_tree {
Program broadcast(const Shape& shape);
Program reduce(const Shape& shape);
Program all_reduce(const Shape& shape);
Program reduce_scatter(const Shape& shape);
Program all_gather(const Shape& shape);
Program scatter(const Shape& shape);
Program gather(const Shape& shape);
}  // namespace binomial_tree

namespace ring {
Program broadcast(const Shape& shape);
Program reduce(const Shape& shape);
Program all_reduce(const Shape& shape);
Program reduce_scatter(const Shape& shape);
Program all_gather(const Shape& shape);
}  // namespace ring

namespace recursive {
Program all_reduce(const Shape& shape);
Program all_reduce_whole(const Shape& shape);
Program reduce_scatter(const Shape& shape);
Program all_gather(const Shape& shape);
}  // namespace recursive

namespace pairwise {
Program all_to_all(const Shape& shape);
}  // namespace pairwise

namespace hierarchical {
Program broadcast(const Shape& shape);
Program reduce(const Shape& shape);
Program all_reduce(const Shape& shape);
Program reduce_scatter(const Shape& shape);
Program all_gather(const Shape& shape);
Program scatter(const Shape& shape);
Program gather(const Shape& shape);
Program all_to_all(const Shape& shape);
}  // namespace hierarchical

}  // namespace lockstep::collective
