#include "lockstep/train/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "lockstep/base/clock.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/device.h"
#include "lockstep/optim/clip.h"
#include "lockstep/schedule/validate.h"
#include "lockstep/spec/microbatches.h"
#include "lockstep/spec/names.h"

namespace lockstep::train {

using mesh::Axis;

namespace {

constexpr int64_t kSkippedInARowAllowed = 20;

mesh::Mesh checked_mesh(const spec::RunPlan& plan, int world_size) {
  spec::refuse(spec::validate(plan, world_size));
  return spec::make_mesh(plan.parallel, world_size);
}

// One scale for all ranks: every rank begins with rank 0's, and all take the same decisions.
optim::LossScale agreed_loss_scale(const spec::TrainSpec& train, optim::LossScaleOptions options,
                                   comm::ProcessGroup& world) {
  if (train.precision == spec::Precision::fp16) {
    at::Tensor initial = at::full({1}, options.initial, at::kDouble);
    broadcast(initial, 0, world, {.tag = "loss scale"});
    options.initial = initial.item<double>();
  }
  return make_loss_scale(train, options);
}

// This rank's contiguous run of the global batch's micro-batches.
mesh::Range range_of(const spec::RunPlan& plan, const mesh::Mesh& mesh, int data_rank) {
  return spec::microbatches_of_rank(spec::num_microbatches(plan.train), {data_rank, mesh.size(mesh::Axis::data)});
}

// On ranks that meet in each micro-batch, one with fewer of them runs as many, the rest without valid tokens.
int64_t microbatches_run(const spec::RunPlan& plan, const mesh::Mesh& mesh, int data_rank) {
  return range_of(plan, mesh, meets_in_each_microbatch(plan.parallel) ? 0 : data_rank).size;
}

schedule::Table checked_table(const spec::ParallelSpec& parallel, int64_t microbatches) {
  schedule::Table table = spec::pipeline_table(parallel, microbatches);
  const auto problems = schedule::validate(table, {.whole_step = true});
  LOCKSTEP_CHECK(problems.empty(), problems.front().message());
  return table;
}

data::Batch without_valid_tokens(data::Batch batch) {
  batch.targets_BS = at::full_like(batch.targets_BS, spec::kIgnoredTarget);
  return batch;
}

comm::ProcessGroup& with_recorder(comm::ProcessGroup& world, trace::Recorder* recorder) {
  world.set_recorder(recorder);  // groups that are split off inherit it
  return world;
}

// This rank's group along axes.
std::unique_ptr<comm::ProcessGroup> split_along(std::initializer_list<mesh::Axis> axes, const mesh::Mesh& mesh,
                                                comm::ProcessGroup& world) {
  std::vector<std::string_view> names;
  for (const mesh::Axis axis : axes) names.push_back(mesh::name(axis));
  return world.split(mesh.peers(world.rank(), {axes.begin(), axes.size()}), join(names, " and "));
}

// Not where embedding and head are one table of one stage: its gradient would be complete in neither half.
bool puts_off_head(const spec::RunPlan& plan) {
  const spec::Stage first = spec::cut_into_stages(plan).front();
  return !plan.model.tie_embeddings || !(first.embed && first.head);
}

nn::DeferredWeights::Key key_of(const schedule::Action& action) {
  return {action.stage, action.microbatch};
}

double sum_over(comm::ProcessGroup& group, double value, std::string_view tag) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  all_reduce(sum, group, Reduction::sum, {.tag = tag});
  return sum.item<double>();
}

}  // namespace

Trainer::Trainer(const spec::RunPlan& plan, comm::ProcessGroup& world, TrainerOptions options)
    : plan_(plan),
      world_(with_recorder(world, options.recorder)),
      options_(options),
      mesh_(checked_mesh(plan, world.size())),
      data_rank_(mesh_.coordinates(world.rank())[Axis::data]),
      device_(pick_device(std::string(spec::name(plan.run.device)), world.rank())),
      batches_(plan),
      places_(options.places != nullptr ? *options.places
                                        : spec::place_on_rank(spec::parameters(plan.model), plan, mesh_, world.rank())),
      built_(build_for_states(plan, spec::parameters_on_rank(spec::parameters(plan.model), plan, mesh_, world.rank()),
                              places_, device_)),
      model_(built_.model),
      data_group_(split_along({Axis::data}, mesh_, world)),
      tensor_group_(split_along({Axis::tensor}, mesh_, world)),
      pipeline_group_(split_along({Axis::pipeline}, mesh_, world)),
      model_group_(split_along({Axis::tensor, Axis::pipeline}, mesh_, world)),
      batch_group_(split_along({Axis::data, Axis::pipeline}, mesh_, world)),
      tensor_parallel_(plan, *tensor_group_, {.weights = &deferred_, .head = puts_off_head(plan)}),
      whole_(plan, mesh_, model_->parameter_list(), *tensor_group_, world.rank()),
      stages_(spec::cut_into_stages(plan)),
      executor_(checked_table(plan.parallel, microbatches_run(plan, mesh_, data_rank_)), *pipeline_group_, *this),
      validation_(spec::forward_table(plan.parallel, executor_.table().microbatches), *pipeline_group_, *this),
      states_(make_states(
          {plan_, built_, places_, world_, *data_group_, *tensor_group_, *model_group_, executor_.actions()})),
      lr_schedule_(plan.train),
      loss_scale_(agreed_loss_scale(plan.train, options.loss_scale, world)) {}

int64_t Trainer::samples_per_rank() const {
  return range_of(plan_, mesh_, data_rank_).size * plan_.train.microbatch;
}

void Trainer::load(const std::function<data::Batch(int64_t microbatch)>& get) {
  const mesh::Range range = range_of(plan_, mesh_, data_rank_);
  microbatches_.assign(static_cast<size_t>(executor_.table().microbatches), {});
  for (int64_t m = 0; m < executor_.table().microbatches; ++m) {
    Microbatch& microbatch = microbatches_[static_cast<size_t>(m)];
    microbatch.context = {static_cast<int>(m), steps_done_, (range.offset + m) * plan_.train.microbatch};
    if (m >= range.size) {
      microbatch.batch = without_valid_tokens(microbatches_.front().batch);
      continue;
    }
    microbatch.batch = get(range.offset + m);
    microbatch.batch.tokens_BS = microbatch.batch.tokens_BS.to(device_);
    microbatch.batch.targets_BS = microbatch.batch.targets_BS.to(device_);
  }
}

int64_t Trainer::valid_tokens() const {
  int64_t tokens = 0;
  for (const Microbatch& microbatch : microbatches_) tokens += nn::count_valid(microbatch.batch.targets_BS);
  return tokens;
}

StepReport Trainer::step() {
  const double start_s = now_s();
  report_ = {.step = steps_done_ + 1};
  local_loss_ = 0;
  load(
      [this](int64_t m) { return options_.source ? options_.source(steps_done_, m) : batches_.train(steps_done_, m); });
  const double wait_start_s = now_s();
  report_.tokens = static_cast<int64_t>(sum_over(*data_group_, static_cast<double>(valid_tokens()), "valid tokens"));
  report_.wait_s = now_s() - wait_start_s;

  states_->zero_grad();
  executor_.run(/*announce=*/steps_done_ == 0);
  ++steps_done_;
  report_.step_s = now_s() - start_s;
  report_.bubble_s = executor_.waited_s();
  report_.compute_s = report_.step_s - report_.wait_s - report_.exposed_communication_s - report_.bubble_s;
  return report_;
}

nn::Context Trainer::context(const Microbatch& microbatch, int stage) {
  const nn::BeginRerun begin_rerun = [recorder = options_.recorder, stage, index = microbatch.context.index] {
    return std::make_shared<trace::Span>(recorder, trace::Track::compute,
                                         schedule::name(schedule::Action::Kind::recompute), 0, stage, index);
  };
  return {options_.seams != nullptr ? *options_.seams : tensor_parallel_.seams(),
          microbatch.context,
          {model_->is_training() ? plan_.parallel.recompute : spec::Recompute::none, begin_rerun},
          states_->parts()};
}

at::Tensor Trainer::forward(const schedule::Action& action, const at::Tensor& input) {
  const Microbatch& microbatch = microbatches_.at(static_cast<size_t>(action.microbatch));
  const spec::Stage& stage = stages_.at(static_cast<size_t>(action.stage));
  const nn::Context with = context(microbatch, action.stage);
  at::Tensor hidden_BSH = stage.embed ? model_->embed(microbatch.batch.tokens_BS, with) : input;
  hidden_BSH = model_->blocks(stage.layers, hidden_BSH, with);
  if (!stage.head) return hidden_BSH;

  const at::Tensor sum = model_->token_losses(hidden_BSH, microbatch.batch.targets_BS, with).sum();
  const at::Tensor loss = sum / std::max<int64_t>(report_.tokens, 1);
  if (action.kind == schedule::Action::Kind::forward) {
    local_loss_ += (model_->is_training() ? loss : sum).item<double>();
  }
  return loss * loss_scale_.value();
}

void Trainer::backward(const schedule::Action& action, const at::Tensor& output, const at::Tensor& gradient) {
  states_->backward(action, [&] {
    std::optional<nn::DeferredWeights::Deferral> deferral;
    if (action.kind == schedule::Action::Kind::input_grad) deferral.emplace(deferred_, key_of(action));
    torch::autograd::backward({output}, {gradient});
  });
}

void Trainer::weight_gradient(const schedule::Action& action) {
  states_->backward(action, [&] { deferred_.drain(key_of(action)); });
}

void Trainer::unshard(int stage) {
  states_->unshard(stage);
}

void Trainer::reshard(int stage) {
  states_->reshard(stage);
}

void Trainer::reduce_gradient(int stage) {
  const double start_s = now_s();
  states_->finish(stage);
  report_.exposed_communication_s += now_s() - start_s;
}

void Trainer::before_optimizer_step() {
  const torch::NoGradGuard no_grad;
  const double start_s = now_s();
  states_->add_tied();
  report_.loss = sum_over(*batch_group_, local_loss_, "loss");
  report_.exposed_communication_s += now_s() - start_s;
}

void Trainer::optimizer_step() {
  const torch::NoGradGuard no_grad;
  report_.loss_scale = loss_scale_.value();
  states_->unscale(1 / loss_scale_.value());
  // The same number on every rank, so every rank takes the same decision.
  report_.grad_norm = std::sqrt(states_->squared_gradient_norm());
  report_.lr = lr_schedule_.at(updates_done_);
  if (options_.record != nullptr) {
    options_.record->steps.push_back({report_.loss, report_.grad_norm, of_model(states_->gradients())});
  }
  report_.skipped = !std::isfinite(report_.grad_norm);
  loss_scale_.update(!report_.skipped);
  if (report_.skipped) return refuse_endless_skipping();
  skipped_in_a_row_ = 0;
  states_->update(report_.lr, optim::clip_scale(report_.grad_norm, plan_.train.clip_norm));
  ++updates_done_;
}

void Trainer::refuse_endless_skipping() {
  if (++skipped_in_a_row_ < kSkippedInARowAllowed) return;
  const std::string first = states_->first_not_finite();
  const std::string skipped =
      text("rank ", world_.rank(), ": ", skipped_in_a_row_, " steps in a row were skipped because gradients ");
  if (first.empty()) throw Error(skipped + "of another tensor rank are not finite");
  throw Error(text(skipped, "are not finite, the first of them ", first, "; lower train.lr or look at the data"));
}

double Trainer::validation_loss() {
  model_->eval();
  local_loss_ = 0;
  int64_t tokens = 0;
  for (int64_t batch = 0; batch < batches_.validation_batches(); ++batch) {
    load([&](int64_t microbatch) { return batches_.validation(batch, microbatch); });
    tokens += valid_tokens();
    validation_.run(/*announce=*/!validated_, /*with_gradients=*/false);
    validated_ = true;
  }
  model_->train();
  return sum_over(*batch_group_, local_loss_, "validation loss") /
         sum_over(*data_group_, static_cast<double>(tokens), "validation tokens");
}

std::vector<nn::Parameter> Trainer::parameters_to_save() const {
  std::vector<NamedTensor> own;
  const std::vector<NamedTensor> held = states_->weights(/*to_save=*/true);
  std::vector<nn::Parameter> whole;
  if (data_rank_ != 0) return whole;
  for (size_t i = 0; i < held.size(); ++i) {
    const bool is_whole = tensor_group_->size() == 1;
    own.push_back({held[i].name, is_whole ? held[i].tensor : whole_.gather(held[i].name, held[i].tensor)});
  }
  if (tensor_group_->rank() != 0) return whole;
  std::map<std::string, spec::ParameterSpec> by_name;
  for (const spec::ParameterSpec& parameter : spec::parameters(plan_.model)) by_name[parameter.name] = parameter;
  for (const NamedTensor& named : of_all_stages(std::move(own), plan_.model, *pipeline_group_, /*only_on=*/0)) {
    const spec::ParameterSpec& parameter = by_name.at(named.name);
    const mesh::Region all{std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape};
    whole.push_back({parameter, named.tensor, all});
  }
  return whole;
}

std::vector<NamedTensor> Trainer::of_model(std::vector<NamedTensor> own) const {
  return of_all_stages(whole_.gather(std::move(own)), plan_.model, *pipeline_group_);
}

void Trainer::record_end(RunRecord& record) const {
  record.parameters = of_model(states_->weights(/*to_save=*/false));
  record.state = of_model(states_->optimizer_state());
}

}  // namespace lockstep::train
