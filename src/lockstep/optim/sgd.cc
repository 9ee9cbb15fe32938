#include <torch/torch.h>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

namespace {

using at::Tensor;

class Sgd : public Optimizer {
 public:
  Sgd(std::vector<Parameter> parameters, const SgdOptions& options)
      : parameters_(std::move(parameters)), options_(options) {
    if (options_.momentum == 0) return;
    for (const Parameter& parameter : parameters_) momentum_.push_back(at::zeros_like(parameter.tensor));
  }

  void step(double lr) override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Tensor& tensor = parameters_[i].tensor;
      Tensor direction = tensor.grad();
      if (!direction.defined()) continue;
      if (parameters_[i].decay && options_.weight_decay != 0) direction = direction.add(tensor, options_.weight_decay);
      if (options_.momentum != 0) direction = momentum_[i].mul_(options_.momentum).add_(direction);
      tensor.add_(direction, -lr);
    }
  }

  std::vector<State> state() const override {
    std::vector<State> state;
    for (size_t i = 0; i < momentum_.size(); ++i) {
      state.push_back({parameters_[i].name, "momentum", momentum_[i]});
    }
    return state;
  }

 private:
  std::vector<Parameter> parameters_;
  SgdOptions options_;
  std::vector<Tensor> momentum_;  // empty without momentum
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(std::vector<Parameter> parameters, const SgdOptions& options) {
  return std::make_unique<Sgd>(std::move(parameters), options);
}

}  // namespace lockstep::optim
