#include "lockstep/train/build.h"

#include <torch/torch.h>

#include "lockstep/checkpoint/weights.h"

namespace lockstep::train {

at::ScalarType scalar_type(spec::Precision precision) {
  switch (precision) {
    case spec::Precision::fp32:
      return at::kFloat;
    case spec::Precision::fp64:
      return at::kDouble;
    case spec::Precision::bf16:
      return at::kBFloat16;
    case spec::Precision::fp16:
      return at::kHalf;
  }
  LOCKSTEP_CHECK(false, "unknown precision");
}

Built build(const spec::RunPlan& plan, at::Device device) {
  const std::vector<spec::ParameterSpec> all = spec::parameters(plan.model);
  return build(plan, all, spec::whole_places(all), device);
}

Built build(const spec::RunPlan& plan, const std::vector<spec::ParameterSpec>& held,
            const std::vector<spec::ParameterPlace>& places, at::Device device) {
  const bool low = spec::is_low(plan.train.precision);
  const at::ScalarType type = scalar_type(plan.train.precision);
  Built built;
  built.masters =
      nn::create_parameters(held, places, static_cast<uint64_t>(plan.train.seed), {low ? at::kFloat : type, device});
  if (!plan.model.weights.empty()) checkpoint::load_weights(plan.model.weights, plan.model, built.masters);
  std::vector<nn::Parameter> parameters = built.masters;
  for (nn::Parameter& parameter : parameters) {
    if (low) parameter.tensor = parameter.tensor.detach().to(type).requires_grad_();
  }
  built.model = std::make_shared<nn::Transformer>(plan.model, std::move(parameters));
  return built;
}

std::shared_ptr<nn::Transformer> make_model(const spec::RunPlan& plan, at::Device device) {
  return build(plan, device).model;
}

optim::MasterWeights tie(const Built& built) {
  std::vector<optim::Parameter> masters;
  for (const nn::Parameter& master : built.masters)
    masters.push_back({master.spec.name, master.tensor, master.spec.decay});
  std::vector<at::Tensor> weights;
  for (const nn::Parameter& parameter : built.model->parameter_list()) weights.push_back(parameter.tensor);
  return {std::move(masters), std::move(weights)};
}

at::ScalarType gradient_type(const spec::TrainSpec& train) {
  const bool widened = spec::is_low(train.precision) && train.gradient_dtype == spec::GradientDtype::fp32;
  return widened ? at::kFloat : scalar_type(train.precision);
}

optim::LossScale make_loss_scale(const spec::TrainSpec& train, const optim::LossScaleOptions& options) {
  return train.precision == spec::Precision::fp16 ? optim::LossScale(options) : optim::LossScale();
}

}  // namespace lockstep::train
