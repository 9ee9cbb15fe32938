#include "lockstep/train/build.h"

#include "lockstep/checkpoint/weights.h"

namespace lockstep::train {

std::shared_ptr<nn::Transformer> make_model(const spec::RunPlan& plan, at::Device device) {
  return make_model(plan, spec::whole_places(spec::parameters(plan.model)), device);
}

std::shared_ptr<nn::Transformer> make_model(const spec::RunPlan& plan, const std::vector<spec::ParameterPlace>& places,
                                            at::Device device) {
  const at::ScalarType dtype = plan.train.precision == spec::Precision::fp64 ? at::kDouble : at::kFloat;
  auto model = std::make_shared<nn::Transformer>(
      plan.model, nn::create_parameters(spec::parameters(plan.model), places, static_cast<uint64_t>(plan.train.seed),
                                        {dtype, device}));
  if (!plan.model.weights.empty()) checkpoint::load_weights(plan.model.weights, plan.model, model->parameter_list());
  return model;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const spec::TrainSpec& train,
                                                 const std::vector<nn::Parameter>& parameters) {
  std::vector<optim::Parameter> updated;
  for (const nn::Parameter& parameter : parameters)
    updated.push_back({parameter.spec.name, parameter.tensor, parameter.spec.decay});
  return optim::make_optimizer(train, std::move(updated));
}

}  // namespace lockstep::train
