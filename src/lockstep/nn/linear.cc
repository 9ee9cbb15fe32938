#include "lockstep/nn/linear.h"

#include <torch/torch.h>

namespace lockstep::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [..., H] -> [tokens, H]
Tensor as_matrix(const Tensor& x) {
  return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
}

class SplitLinear : public torch::autograd::Function<SplitLinear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, DeferredWeights* deferred) {
    context->save_for_backward({x, weight, bias.value_or(Tensor())});
    context->saved_data["deferred"] = reinterpret_cast<int64_t>(deferred);
    return at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& deferred = *reinterpret_cast<DeferredWeights*>(context->saved_data["deferred"].toInt());
    const variable_list kept = context->get_saved_variables();
    const Tensor &gradient = gradients[0], &x = kept[0], &weight = kept[1], &bias = kept[2];
    const bool weight_wanted = context->needs_input_grad(1),
               bias_wanted = bias.defined() && context->needs_input_grad(2);
    variable_list result(4);
    if (context->needs_input_grad(0)) result[0] = as_matrix(gradient).mm(weight).view(x.sizes());
    if (deferred.deferring()) {
      deferred.put_off(work_of(gradient, x, weight_wanted ? weight : Tensor(), bias_wanted ? bias : Tensor()));
      return result;
    }
    if (weight_wanted) result[1] = weight_gradient(gradient, x);
    if (bias_wanted) result[2] = bias_gradient(gradient);
    return result;
  }

 private:
  static WeightWork work_of(const Tensor& gradient, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    WeightWork work{.kept = {gradient, x.detach()}};
    for (const Tensor& parameter : {weight, bias}) {
      if (parameter.defined()) work.parameters.push_back(parameter);
    }
    work.start = [of_weight = weight.defined(), of_bias = bias.defined()](const std::vector<Tensor>& kept_now) {
      return [of_weight, of_bias, kept_now] {
        std::vector<Tensor> result;
        if (of_weight) result.push_back(weight_gradient(kept_now[0], kept_now[1]));
        if (of_bias) result.push_back(bias_gradient(kept_now[0]));
        return result;
      };
    };
    return work;
  }
};

}  // namespace

Tensor weight_gradient(const Tensor& gradient, const Tensor& x) {
  return as_matrix(gradient).t().mm(as_matrix(x));
}

Tensor bias_gradient(const Tensor& gradient) {
  return as_matrix(gradient).sum(0);
}

Tensor linear(const Tensor& x, const Projection& projection, DeferredWeights* deferred) {
  if (deferred == nullptr) return at::linear(x, projection.weight, projection.bias);
  const std::optional<Tensor> bias = projection.bias.defined() ? std::optional(projection.bias) : std::nullopt;
  return SplitLinear::apply(x, projection.weight, bias, deferred);
}

}  // namespace lockstep::nn
