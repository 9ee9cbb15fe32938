// A linear layer of one device, whose gradients can be computed in two halves (deferred_weights.h).
#pragma once

#include "lockstep/nn/deferred_weights.h"
#include "lockstep/nn/seams.h"

namespace lockstep::nn {

// x weight^T + bias: [..., H] -> [..., O], and its gradients, with the bits of at::linear. The bias may be undefined.
//   deferred   null: never put off; else it must outlive the graph
at::Tensor linear(const at::Tensor& x, const Projection& projection, DeferredWeights* deferred);

// Gradients of weight [O,H] and bias [O] for y = x weight^T + bias, from y's gradient [..., O].
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x);
at::Tensor bias_gradient(const at::Tensor& gradient);

}  // namespace lockstep::nn
