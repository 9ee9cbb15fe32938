// Master weights: a model that computes in bf16 or fp16 is trained on fp32 copies of its weights, because updates are
// smaller than what its own types can add.
//
//   masters (fp32) --round--> model's weights (bf16) --forward, backward--> gradients --widen--> masters' gradients
//      ^-------------------------------- optimizer ------------------------------------------------------'
//
// Masters are what a run is: they are what the optimizer updates, what is saved and what is loaded. The model's weights
// follow from them. In fp32 and fp64 both are the same tensors, and nothing is copied.
//   source   Micikevicius et al. 2018, "Mixed precision training", section 3.1
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

class MasterWeights {
 public:
  // masters[i] belongs to model[i], tensors of one shape; the model's take the masters' values at once.
  //   masters   fp32, or the tensors of `model` themselves
  MasterWeights(std::vector<Parameter> masters, std::vector<at::Tensor> model);

  // Of what to make the optimizer.
  const std::vector<Parameter>& masters() const { return masters_; }

  // Gives masters the gradients of the model's weights, undefined ones included: those of the master's type as they are
  // (no copy), others widened.
  void take_gradients();

  // Makes the gradients of masters that are not the model's own tensors undefined, and so frees widened ones.
  void drop_gradients();

  // Rounds the masters (to nearest, ties to even) into the model's weights: after an update, and after anything else
  // that wrote into masters, such as loading.
  void publish();

 private:
  std::vector<Parameter> masters_;
  std::vector<at::Tensor> model_;
};

}  // namespace lockstep::optim
