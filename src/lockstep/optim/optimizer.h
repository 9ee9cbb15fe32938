// Optimizers over a list of named tensors: whole parameters, or the flat shard of them that a rank keeps. State is made
// at once and named, so that it can be compared, saved and loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/spec/plan.h"

namespace lockstep::optim {

// Updated in place from tensor.grad().
struct Parameter {
  std::string name;
  at::Tensor tensor;
  bool decay = true;  // weight decay applies
};

// One state tensor of one parameter; `tensor` is the optimizer's own, so copying into it loads state.
struct State {
  std::string parameter;
  std::string name;  // adamw: "exp_avg", "exp_avg_sq", "step"; sgd: "momentum"
  at::Tensor tensor;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One update with the learning rate `lr`. A parameter without a gradient (undefined) keeps its value and its state,
  // as in PyTorch; one whose gradient is zero is updated.
  virtual void step(double lr) = 0;

  // In the order of the parameters.
  virtual std::vector<State> state() const = 0;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// Decoupled weight decay; equal to torch.optim.AdamW.
//   source   Loshchilov and Hutter 2019, "Decoupled weight decay regularization"
std::unique_ptr<Optimizer> make_adamw(std::vector<Parameter> parameters, const AdamWOptions& options);

struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;
};

// momentum = m * momentum + (grad + weight_decay * x); x -= lr * momentum; equal to torch.optim.SGD.
std::unique_ptr<Optimizer> make_sgd(std::vector<Parameter> parameters, const SgdOptions& options);

// The one that the plan names, with its settings.
std::unique_ptr<Optimizer> make_optimizer(const spec::TrainSpec& train, std::vector<Parameter> parameters);

}  // namespace lockstep::optim
