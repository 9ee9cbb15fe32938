// From a RunPlan to the objects of a run that do not depend on ranks; shared by the trainer and the plain loop.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/optim/loss_scale.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/master_weights.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/spec/plan.h"

namespace lockstep::train {

at::ScalarType scalar_type(spec::Precision precision);

// The whole model with its initial values, or with the weights that the plan names, and what is trained of it: the
// model's own parameters, or their fp32 masters (optim/master_weights.h), which then hold the values to the last bit.
// Sharded states keep shards of masters instead: then there are none here.
struct Built {
  std::vector<nn::Parameter> masters;
  std::shared_ptr<nn::Transformer> model;
};
Built build(const spec::RunPlan& plan, at::Device device);

// What a rank holds of it: these parameters, at these places.
Built build(const spec::RunPlan& plan, const std::vector<spec::ParameterSpec>& held,
            const std::vector<spec::ParameterPlace>& places, at::Device device);

// The model alone.
std::shared_ptr<nn::Transformer> make_model(const spec::RunPlan& plan, at::Device device);

// Masters tied to the model's weights, for the optimizer.
optim::MasterWeights tie(const Built& built);

// Of accumulated and reduced gradients.
at::ScalarType gradient_type(const spec::TrainSpec& train);

// What the plan's precision needs at its beginning; `options` are for fp16.
optim::LossScale make_loss_scale(const spec::TrainSpec& train, const optim::LossScaleOptions& options = {});

}  // namespace lockstep::train
