#include "lockstep/train/stage_timer.h"

#include <torch/torch.h>

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/distributed/device.h"
#include "lockstep/optim/clip.h"
#include "lockstep/spec/names.h"

namespace lockstep::train {
namespace {

using at::Tensor;
using cost::ActionTimes;

// The plan of a rank that has nobody to wait for.
spec::RunPlan alone(spec::RunPlan plan) {
  if (plan.parallel.tensor > 1) {
    throw InvalidArgument(Problem{"parallel.tensor", text(plan.parallel.tensor),
                                  "one rank is measured, and tensor ranks compute a layer together", "1"}
                              .message());
  }
  const spec::ParallelSpec given = std::exchange(plan.parallel, {});
  plan.parallel.recompute = given.recompute;
  spec::refuse(spec::validate(plan, 1));
  return plan;
}

std::vector<spec::ParameterSpec> held_by(const spec::Stage& stage, const spec::ModelSpec& model) {
  const int64_t end = stage.layers.offset + stage.layers.size;
  if (stage.layers.offset < 0 || stage.layers.size < 0 || end > model.layers) {
    throw InvalidArgument(Problem{"layers", text("[", stage.layers.offset, ", ", end, ")"),
                                  text("must be within model.layers = ", model.layers), ""}
                              .message());
  }
  const std::vector<std::string> names = spec::parameters_of(stage, model);
  if (names.empty()) throw InvalidArgument("stage: holds neither embedding, nor layers, nor head");
  std::vector<spec::ParameterSpec> held;
  for (const spec::ParameterSpec& parameter : spec::parameters(model)) {
    if (std::ranges::find(names, parameter.name) != names.end()) held.push_back(parameter);
  }
  return held;
}

Built build_stage(const spec::RunPlan& plan, const spec::Stage& stage, at::Device device) {
  const auto held = held_by(stage, plan.model);
  spec::RunPlan initial = plan;
  initial.model.weights.clear();  // time does not depend on values
  return build(initial, held, spec::whole_places(held), device);
}

// Seconds until all that `work` has begun on the device is done.
template <class Work>
double timed(at::Device device, const Work& work) {
  synchronize(device);
  const double start_s = now_s();
  work();
  synchronize(device);
  return now_s() - start_s;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

ActionTimes medians(const std::vector<ActionTimes>& rounds) {
  const auto of = [&](double ActionTimes::* time) {
    std::vector<double> values;
    for (const ActionTimes& round : rounds) values.push_back(round.*time);
    return median(std::move(values));
  };
  return {of(&ActionTimes::forward_s), of(&ActionTimes::backward_s), of(&ActionTimes::input_grad_s),
          of(&ActionTimes::weight_grad_s), of(&ActionTimes::optimizer_s)};
}

}  // namespace

StageTimer::StageTimer(const spec::RunPlan& plan, const spec::Stage& stage)
    : plan_(alone(plan)),
      stage_(stage),
      device_(pick_device(std::string(spec::name(plan.run.device)), 0)),
      // As the trainer does: a head whose weight is this stage's embedding does not put it off.
      seams_(static_cast<uint64_t>(plan.train.seed),
             {.weights = &deferred_, .head = !(plan.model.tie_embeddings && stage.embed && stage.head)}),
      built_(build_stage(plan_, stage, device_)),
      master_weights_(tie(built_)),
      optimizer_(optim::make_optimizer(plan.train, master_weights_.masters())) {
  // Gradients exist but in a step's first micro-batch: backwards add to them.
  for (const nn::Parameter& parameter : built_.model->parameter_list()) {
    parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor);
  }
}

StageTimer::Pass StageTimer::forward(int64_t samples) {
  const nn::Transformer& model = *built_.model;
  const int64_t sequence = plan_.model.sequence;
  const nn::Context context{seams_.seams(), {}, {.mode = plan_.parallel.recompute}};
  const auto options = model.parameter_list().front().tensor.options().requires_grad(false);
  const Tensor tokens_BS =
      at::arange(samples * sequence, options.dtype(at::kLong)).remainder(plan_.model.vocab).view({samples, sequence});
  Tensor hidden_BSH;
  if (!stage_.embed) hidden_BSH = at::randn({samples, sequence, plan_.model.hidden}, options).requires_grad_();
  Pass pass;
  pass.forward_s = timed(device_, [&] {
    if (stage_.embed) hidden_BSH = model.embed(tokens_BS, context);
    hidden_BSH = model.blocks(stage_.layers, hidden_BSH, context);
    pass.output =
        stage_.head ? model.token_losses(hidden_BSH, tokens_BS, context).sum() / tokens_BS.numel() : hidden_BSH;
  });
  if (!stage_.head) pass.gradient = at::randn_like(pass.output);
  return pass;
}

double StageTimer::update() {
  const torch::NoGradGuard no_grad;
  const double seconds = timed(device_, [&] {
    master_weights_.take_gradients();
    std::vector<Tensor> gradients;
    for (const nn::Parameter& master : built_.masters) gradients.push_back(master.tensor.grad());
    optim::clip_by_global_norm(gradients, plan_.train.clip_norm);
    optimizer_->step(plan_.train.lr);
    master_weights_.publish();
  });
  for (const nn::Parameter& parameter : built_.model->parameter_list()) parameter.tensor.mutable_grad().zero_();
  return seconds;
}

ActionTimes StageTimer::once(int64_t samples) {
  if (samples < 1) throw InvalidArgument(Problem{"samples", text(samples), "must be at least 1", "1"}.message());
  ActionTimes times;
  {
    Pass pass = forward(samples);
    times.forward_s = pass.forward_s;
    times.backward_s = timed(device_, [&] { torch::autograd::backward({pass.output}, {pass.gradient}); });
  }
  {
    Pass pass = forward(samples);
    times.input_grad_s = timed(device_, [&] {
      const auto deferral = deferred_.defer({});
      torch::autograd::backward({pass.output}, {pass.gradient});
    });
  }
  times.weight_grad_s = timed(device_, [&] { deferred_.drain({}); });
  times.optimizer_s = update();
  return times;
}

std::vector<ActionTimes> StageTimer::measure(std::span<const int64_t> samples, const TimingEffort& effort) {
  std::vector<std::vector<ActionTimes>> by_size(samples.size());
  for (const int64_t size : samples) once(size);
  const double start_s = now_s(), start_cpu_s = thread_cpu_s();
  for (int round = 0; round < effort.least_rounds || now_s() - start_s < effort.seconds; ++round) {
    for (size_t i = 0; i < samples.size(); ++i) by_size[i].push_back(once(samples[i]));
  }
  cpu_share_ = (thread_cpu_s() - start_cpu_s) / (now_s() - start_s);
  std::vector<ActionTimes> result;
  for (const auto& rounds : by_size) result.push_back(medians(rounds));
  return result;
}

ModelMeasurement measure_model(const spec::RunPlan& plan, std::span<const int64_t> samples,
                               const TimingEffort& effort) {
  const auto measure = [&](const spec::Stage& part) {
    PartMeasurement of_part{.part = part};
    StageTimer timer(plan, part);
    of_part.measured = timer.measure(samples, effort);
    of_part.cpu_share = timer.cpu_share();
    of_part.fit = cost::fit_part_times(samples, of_part.measured);
    return of_part;
  };
  return {measure({.embed = true}), measure({.layers = {0, 1}}), measure({.head = true})};
}

}  // namespace lockstep::train
