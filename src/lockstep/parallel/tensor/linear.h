// Linear layers whose weights are split over the ranks of a tensor group, and the border functions they are made of.
//
//   columns: each rank holds some of the outputs      rows: each holds some of the inputs
//
//        x --enter--> x W_r^T + b_r = y_r                  x_r W_r^T --leave--> y + b
//
// A column layer followed by a row layer exchanges once in forward and once in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/deferred_weights.h"
#include "lockstep/nn/seams.h"
#include "lockstep/parallel/tensor/tensor_group.h"

namespace lockstep::parallel {

// f and g: forward enters or leaves a split part of the model, backward does the other. `tag` names the exchange in
// errors and traces. The group must outlive the graph.
at::Tensor enter_split(const at::Tensor& x, const TensorGroup& group, const std::string& tag);
at::Tensor leave_split(const at::Tensor& partial, const TensorGroup& group, const std::string& tag);

// y_i = enter(x) weight_i^T + bias_i; weights [O_i,H] and biases [O_i] are this rank's outputs.
//   x        [..., H] between split parts; with sequence parallelism [B,S_r,H]
//   returns  [..., O_i] inside, one per projection
//   deferred where gradients of weights may be put off; null: nowhere. Must outlive the graph
// The entered x is not kept for backward but gathered again, while the input's gradient is computed; or, when the
// weights' gradients are put off, in W.
std::vector<at::Tensor> column_linears(const at::Tensor& x, std::span<const nn::Projection> projections,
                                       const TensorGroup& group, const std::string& tag,
                                       nn::DeferredWeights* deferred = nullptr);

// y = leave(x weight^T) + bias; weight [O,H] of this rank's inputs, bias [O] whole and added once.
//   x        [..., H] inside
//   returns  [..., O] between split parts
// With sequence parallelism the bias's gradient is of this rank's positions alone: the caller sums it over the ranks.
// What W needs of y's gradient is kept as this rank's positions and gathered again: one all_gather more than B makes.
at::Tensor row_linear(const at::Tensor& x, const nn::Projection& projection, const TensorGroup& group,
                      const std::string& tag, nn::DeferredWeights* deferred = nullptr);

}  // namespace lockstep::parallel
