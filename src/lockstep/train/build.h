// From a RunPlan to the objects of a run that do not depend on ranks; shared by the trainer and the plain loop.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/spec/plan.h"

namespace lockstep::train {

// The whole model with its initial values, or with the weights that the plan names.
std::shared_ptr<nn::Transformer> make_model(const spec::RunPlan& plan, at::Device device);

// What a rank holds of it.
std::shared_ptr<nn::Transformer> make_model(const spec::RunPlan& plan, const std::vector<spec::ParameterPlace>& places,
                                            at::Device device);

std::unique_ptr<optim::Optimizer> make_optimizer(const spec::TrainSpec& train,
                                                 const std::vector<nn::Parameter>& parameters);

}  // namespace lockstep::train
