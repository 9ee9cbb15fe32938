#include "lockstep/train/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/device.h"
#include "lockstep/optim/clip.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/validate.h"
#include "lockstep/spec/microbatches.h"
#include "lockstep/spec/names.h"

namespace lockstep::train {
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

schedule::Table checked_table(int64_t microbatches) {
  schedule::Table table = schedule::accumulation({.ranks = 1, .microbatches = static_cast<int>(microbatches)});
  const auto problems = schedule::validate(table, {.whole_step = true});
  LOCKSTEP_CHECK(problems.empty(), problems.front().message());
  return table;
}

// On ranks that meet in each micro-batch, one with fewer of them runs as many, the rest without valid tokens.
int64_t microbatches_run(const spec::RunPlan& plan, const mesh::Mesh& mesh, int data_rank) {
  return range_of(plan, mesh, meets_in_each_microbatch(plan.parallel) ? 0 : data_rank).size;
}

data::Batch without_valid_tokens(data::Batch batch) {
  batch.targets_BS = at::full_like(batch.targets_BS, spec::kIgnoredTarget);
  return batch;
}

comm::ProcessGroup& with_recorder(comm::ProcessGroup& world, trace::Recorder* recorder) {
  world.set_recorder(recorder);  // groups that are split off inherit it
  return world;
}

// This rank's group along an axis.
std::unique_ptr<comm::ProcessGroup> split_along(mesh::Axis axis, const mesh::Mesh& mesh, comm::ProcessGroup& world) {
  return world.split(mesh.peers(world.rank(), {&axis, 1}), mesh::name(axis));
}

}  // namespace

Trainer::Trainer(const spec::RunPlan& plan, comm::ProcessGroup& world, TrainerOptions options)
    : plan_(plan),
      world_(with_recorder(world, options.recorder)),
      options_(options),
      mesh_(checked_mesh(plan, world.size())),
      data_rank_(mesh_.coordinates(world.rank())[mesh::Axis::data]),
      device_(pick_device(std::string(spec::name(plan.run.device)), world.rank())),
      batches_(plan),
      places_(options.places != nullptr ? *options.places
                                        : spec::place_on_rank(spec::parameters(plan.model), plan, mesh_, world.rank())),
      built_(build_for_states(plan, places_, device_)),
      model_(built_.model),
      data_group_(split_along(mesh::Axis::data, mesh_, world)),
      tensor_group_(split_along(mesh::Axis::tensor, mesh_, world)),
      tensor_parallel_(plan, *tensor_group_),
      whole_(plan, mesh_, model_->parameter_list(), *tensor_group_, world.rank()),
      states_(make_states({plan_, built_, places_, world_, *data_group_, *tensor_group_})),
      lr_schedule_(plan.train),
      loss_scale_(agreed_loss_scale(plan.train, options.loss_scale, world)),
      table_(checked_table(microbatches_run(plan, mesh_, data_rank_))) {}

nn::Context Trainer::context(const nn::MicrobatchContext& microbatch, nn::Recomputation recomputation) {
  return {options_.seams != nullptr ? *options_.seams : tensor_parallel_.seams(), microbatch, std::move(recomputation),
          states_->parts()};
}

int64_t Trainer::samples_per_rank() const {
  return range_of(plan_, mesh_, data_rank_).size * plan_.train.microbatch;
}

double Trainer::sum_over_data(double value, std::string_view tag) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  all_reduce(sum, *data_group_, Reduction::sum, {.tag = tag});
  return sum.item<double>();
}

void Trainer::load_microbatches() {
  const mesh::Range range = range_of(plan_, mesh_, data_rank_);
  microbatches_.assign(static_cast<size_t>(table_.microbatches), {});
  for (int64_t m = 0; m < table_.microbatches; ++m) {
    Microbatch& microbatch = microbatches_[static_cast<size_t>(m)];
    microbatch.context = {static_cast<int>(m), steps_done_, (range.offset + m) * plan_.train.microbatch};
    if (m >= range.size) {
      microbatch.batch = without_valid_tokens(microbatches_.front().batch);
      continue;
    }
    microbatch.batch = options_.source ? options_.source(steps_done_, range.offset + m)
                                       : batches_.train(steps_done_, range.offset + m);
    microbatch.batch.tokens_BS = microbatch.batch.tokens_BS.to(device_);
    microbatch.batch.targets_BS = microbatch.batch.targets_BS.to(device_);
  }
}

StepReport Trainer::step() {
  const double start_s = now_s();
  report_ = {.step = steps_done_ + 1};
  local_loss_ = 0;
  load_microbatches();
  int64_t valid_tokens = 0;
  for (const Microbatch& microbatch : microbatches_) valid_tokens += nn::count_valid(microbatch.batch.targets_BS);
  const double wait_start_s = now_s();
  report_.tokens = static_cast<int64_t>(sum_over_data(static_cast<double>(valid_tokens), "valid tokens"));
  report_.wait_s = now_s() - wait_start_s;

  states_->zero_grad();
  for (const schedule::Action& action : table_.actions_by_rank.front()) {
    const trace::Span span(options_.recorder, trace::Track::compute, schedule::name(action.kind), 0, action.stage,
                           action.microbatch);
    perform(action);
  }
  ++steps_done_;
  report_.step_s = now_s() - start_s;
  report_.compute_s = report_.step_s - report_.wait_s - report_.exposed_communication_s;
  return report_;
}

// The one interpreter of action lists. A new kind of action is a new case here and nowhere else.
void Trainer::perform(const schedule::Action& action) {
  using Kind = schedule::Action::Kind;
  switch (action.kind) {
    case Kind::forward:
      return forward(microbatches_.at(static_cast<size_t>(action.microbatch)));
    case Kind::backward:
      return backward(microbatches_.at(static_cast<size_t>(action.microbatch)),
                      action.microbatch + 1 == table_.microbatches);
    case Kind::reduce_gradient:
      return reduce_gradient();
    case Kind::optimizer_step:
      return optimizer_step();
    default:
      LOCKSTEP_CHECK(false, "no way to perform ", schedule::to_string(action));
  }
}

void Trainer::forward(Microbatch& microbatch) {
  const nn::BeginRerun begin_rerun = [recorder = options_.recorder, index = microbatch.context.index] {
    return std::make_shared<trace::Span>(recorder, trace::Track::compute,
                                         schedule::name(schedule::Action::Kind::recompute), 0, /*stage=*/0, index);
  };
  const at::Tensor sum = model_->loss_sum(microbatch.batch.tokens_BS, microbatch.batch.targets_BS,
                                          context(microbatch.context, {plan_.parallel.recompute, begin_rerun}));
  microbatch.loss = sum / std::max<int64_t>(report_.tokens, 1);
  local_loss_ += microbatch.loss.item<double>();
}

void Trainer::backward(Microbatch& microbatch, bool last) {
  const at::Tensor loss = std::exchange(microbatch.loss, {}) * loss_scale_.value();
  states_->backward(loss, last);
}

void Trainer::reduce_gradient() {
  const double start_s = now_s();
  states_->finish();
  report_.loss = sum_over_data(local_loss_, "loss");
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
    options_.record->steps.push_back({report_.loss, report_.grad_norm, whole_.gather(states_->gradients())});
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
  const torch::NoGradGuard no_grad;
  model_->eval();
  double loss = 0;
  int64_t tokens = 0;
  const mesh::Range range = range_of(plan_, mesh_, data_rank_);
  for (int64_t batch = 0; batch < batches_.validation_batches(); ++batch) {
    for (int64_t m = 0; m < table_.microbatches; ++m) {
      data::Batch microbatch = batches_.validation(batch, range.offset + std::min(m, range.size - 1));
      if (m >= range.size) microbatch = without_valid_tokens(microbatch);
      loss += model_->loss_sum(microbatch.tokens_BS.to(device_), microbatch.targets_BS.to(device_), context({}, {}))
                  .item<double>();
      tokens += nn::count_valid(microbatch.targets_BS);
    }
  }
  model_->train();
  const double total_loss = sum_over_data(loss, "validation loss");
  return total_loss / sum_over_data(static_cast<double>(tokens), "validation tokens");
}

std::vector<nn::Parameter> Trainer::parameters_to_save() const {
  std::vector<nn::Parameter> whole;
  const std::vector<NamedTensor> held = states_->weights(/*to_save=*/true);
  if (data_rank_ != 0) return whole;
  for (size_t i = 0; i < held.size(); ++i) {
    const spec::ParameterSpec& parameter = model_->parameter_list()[i].spec;
    const bool is_whole = tensor_group_->size() == 1;
    const at::Tensor gathered = is_whole ? held[i].tensor : whole_.gather(parameter.name, held[i].tensor);
    const mesh::Region all{std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape};
    if (tensor_group_->rank() == 0) whole.push_back({parameter, gathered, all});
  }
  return whole;
}

void Trainer::record_end(RunRecord& record) const {
  record.parameters = whole_.gather(states_->weights(/*to_save=*/false));
  record.state = whole_.gather(states_->optimizer_state());
}

}  // namespace lockstep::train
