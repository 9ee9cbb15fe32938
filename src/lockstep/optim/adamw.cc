#include <torch/torch.h>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

namespace {

using at::Tensor;

class AdamW : public Optimizer {
 public:
  AdamW(std::vector<Parameter> parameters, const AdamWOptions& options)
      : parameters_(std::move(parameters)), options_(options) {
    for (const Parameter& parameter : parameters_) {
      moments_.push_back({at::zeros_like(parameter.tensor), at::zeros_like(parameter.tensor),
                          at::zeros({}, parameter.tensor.options().dtype(at::kFloat))});
    }
  }

  void step(double lr) override {
    const at::NoGradGuard no_grad;
    update(lr, /*decay=*/true);
    update(lr, /*decay=*/false);
  }

  std::vector<State> state() const override {
    std::vector<State> state;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      state.push_back({parameters_[i].name, "exp_avg", moments_[i].first});
      state.push_back({parameters_[i].name, "exp_avg_sq", moments_[i].second});
      state.push_back({parameters_[i].name, "step", moments_[i].step});
    }
    return state;
  }

 private:
  struct Moments {
    Tensor first, second;
    Tensor step;  // updates so far; a scalar of type float on the parameter's device, as the fused kernel wants it
  };

  // The fused kernel takes one weight decay for all tensors it is given: one call per decay group.
  void update(double lr, bool decay) {
    std::vector<Tensor> tensors, gradients, first, second, steps;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& gradient = parameters_[i].tensor.grad();
      if (parameters_[i].decay != decay || !gradient.defined()) continue;
      tensors.push_back(parameters_[i].tensor);
      gradients.push_back(gradient);
      first.push_back(moments_[i].first);
      second.push_back(moments_[i].second);
      steps.push_back(moments_[i].step);
    }
    if (tensors.empty()) return;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(tensors, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps, lr, options_.beta1,
                      options_.beta2, decay ? options_.weight_decay : 0, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }

  std::vector<Parameter> parameters_;
  AdamWOptions options_;
  std::vector<Moments> moments_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(std::vector<Parameter> parameters, const AdamWOptions& options) {
  return std::make_unique<AdamW>(std::move(parameters), options);
}

}  // namespace lockstep::optim
