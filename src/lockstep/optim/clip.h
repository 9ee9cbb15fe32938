// Clipping by the global norm, in the two halves that ranks need: each sums the squares of what it holds, the sums are
// added over ranks, and every rank scales by the same factor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/distributed/collectives.h"

namespace lockstep::optim {

// Sum of squares of every element, in double; undefined tensors count as zero. Infinite or NaN when an element is.
double squared_norm(const std::vector<at::Tensor>& gradients);

// The same of a gradient that the ranks of `group` hold together; each gives what it counts of every parameter of the
// model, in the same order (undefined: nothing), every element once. The same number on every rank, and where no
// parameter is cut that of one rank, to the bit.
double squared_norm_over_ranks(const std::vector<at::Tensor>& counted, comm::ProcessGroup& group);

// The sum of squares to the same bits however elements are cut into tensors, ordered and dealt to ranks. Squares are
// measured in whole units of 2^-80 of the largest element's, in four numbers of 20 bits each, whose sums are exact up
// to 2^33 elements: what is below a unit is lost, n elements lose at most n 2^-78 of the sum. Infinite when an element
// is infinite or NaN.
//   group   over whose ranks to add, each element on one of them; null: this rank has all
double order_free_squared_norm(const std::vector<at::Tensor>& counted, comm::ProcessGroup* group = nullptr);

// What to multiply gradients by so that their norm is at most `max_norm`: max_norm / (norm + 1e-6), at most 1, as in
// PyTorch. max_norm 0 means no clipping. A norm that is not finite gives 1: whether to skip the step is the caller's.
double clip_scale(double norm, double max_norm);

// gradients *= factor, in place; nothing is touched when factor is 1.
void scale(const std::vector<at::Tensor>& gradients, double factor);

// Both halves on one rank. Returns the norm before clipping.
double clip_by_global_norm(const std::vector<at::Tensor>& gradients, double max_norm);

}  // namespace lockstep::optim
