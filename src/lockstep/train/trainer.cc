#include "lockstep/train/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <list>

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

parallel::DataParallelOptions data_parallel_options(const spec::RunPlan& plan) {
  const spec::ParallelSpec& parallel = plan.parallel;
  return {.reduction = comm::Reduction::sum,  // the loss is already divided by the global count of tokens
          .gradient_type = gradient_type(plan.train),
          .bucket_bytes = static_cast<int64_t>(parallel.bucket_mb * (1 << 20)),
          .overlap = parallel.overlap,
          .fixed_tree = parallel.reduction == spec::Reduction::fixed_tree,
          .finish_in_backward = false};
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
      built_(build(plan, places_, device_)),
      model_(built_.model),
      master_weights_(tie(built_)),
      data_group_(split_along(mesh::Axis::data, mesh_, world)),
      tensor_group_(split_along(mesh::Axis::tensor, mesh_, world)),
      tensor_parallel_(plan, *tensor_group_),
      whole_(plan, mesh_, model_->parameter_list(), *tensor_group_, world.rank()),
      optimizer_(optim::make_optimizer(plan.train, master_weights_.masters())),
      lr_schedule_(plan.train),
      loss_scale_(agreed_loss_scale(plan.train, options.loss_scale, world)),
      table_(checked_table(range_of(plan, mesh_, data_rank_).size)) {
  make_reducers();
}

// A reducer for each set of ranks, in the order in which the parameters name them: the same on all ranks.
void Trainer::make_reducers() {
  const mesh::Axis data_axis[] = {mesh::Axis::data};
  const std::vector<int> data_ranks = mesh_.peers(world_.rank(), data_axis);
  std::vector<std::vector<int>> rank_sets;
  std::vector<std::vector<parallel::NamedTensor>> parameters;
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto& [parameter, tensor, region] = model_->parameter_list()[i];
    const auto found = std::ranges::find(rank_sets, places_[i].gradient_ranks);
    const auto set = static_cast<size_t>(found - rank_sets.begin());
    if (found == rank_sets.end()) {
      rank_sets.push_back(places_[i].gradient_ranks);
      parameters.emplace_back();
    }
    parameters[set].push_back({parameter.name, tensor});
  }
  for (size_t set = 0; set < rank_sets.size(); ++set) {
    Reducer& reducer = reducers_.emplace_back();
    if (rank_sets[set] != data_ranks) {
      reducer.own_group = world_.split(rank_sets[set], text("gradients of ", join(rank_sets[set], ",")));
    }
    comm::ProcessGroup& group = reducer.own_group ? *reducer.own_group : *data_group_;
    reducer.parameters =
        std::make_unique<parallel::DataParallel>(std::move(parameters[set]), group, data_parallel_options(plan_));
  }
}

nn::Seams Trainer::seams() {
  return options_.seams != nullptr ? *options_.seams : tensor_parallel_.seams();
}

int64_t Trainer::samples_per_rank() const {
  return static_cast<int64_t>(table_.microbatches) * plan_.train.microbatch;
}

double Trainer::sum_over_data(double value, std::string_view tag) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  all_reduce(sum, *data_group_, Reduction::sum, {.tag = tag});
  return sum.item<double>();
}

void Trainer::load_microbatches() {
  const mesh::Range range = range_of(plan_, mesh_, data_rank_);
  microbatches_.assign(static_cast<size_t>(range.size), {});
  for (int64_t m = 0; m < range.size; ++m) {
    Microbatch& microbatch = microbatches_[static_cast<size_t>(m)];
    microbatch.context = {static_cast<int>(m), steps_done_, (range.offset + m) * plan_.train.microbatch};
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

  for (const Reducer& reducer : reducers_) reducer.parameters->zero_grad();
  master_weights_.drop_gradients();
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
  const nn::Context context{seams(), microbatch.context, {plan_.parallel.recompute, begin_rerun}};
  const at::Tensor sum = model_->loss_sum(microbatch.batch.tokens_BS, microbatch.batch.targets_BS, context);
  microbatch.loss = sum / std::max<int64_t>(report_.tokens, 1);
  local_loss_ += microbatch.loss.item<double>();
}

void Trainer::backward(Microbatch& microbatch, bool last) {
  const at::Tensor loss = std::exchange(microbatch.loss, {}) * loss_scale_.value();
  std::list<parallel::DataParallel::NoSync> local_only;
  for (const Reducer& reducer : reducers_) {
    if (!last) local_only.emplace_back(*reducer.parameters);
  }
  loss.backward();
}

void Trainer::reduce_gradient() {
  const double start_s = now_s();
  for (const Reducer& reducer : reducers_) reducer.parameters->finish();
  report_.loss = sum_over_data(local_loss_, "loss");
  report_.exposed_communication_s += now_s() - start_s;
}

void Trainer::optimizer_step() {
  const torch::NoGradGuard no_grad;
  master_weights_.take_gradients();
  std::vector<at::Tensor> gradients;
  for (const auto& master : masters()) gradients.push_back(master.tensor.grad());
  report_.loss_scale = loss_scale_.value();
  optim::scale(gradients, 1 / loss_scale_.value());
  // The same number on every rank, so every rank takes the same decision.
  report_.grad_norm = std::sqrt(squared_gradient_norm());
  report_.lr = lr_schedule_.at(updates_done_);
  if (options_.record != nullptr) {
    options_.record->steps.push_back({report_.loss, report_.grad_norm, whole_.gather(copy_gradients(masters()))});
  }
  report_.skipped = !std::isfinite(report_.grad_norm);
  loss_scale_.update(!report_.skipped);
  if (report_.skipped) return refuse_endless_skipping(gradients);
  skipped_in_a_row_ = 0;
  optim::scale(gradients, optim::clip_scale(report_.grad_norm, plan_.train.clip_norm));
  optimizer_->step(report_.lr);
  master_weights_.publish();
  ++updates_done_;
}

// Of the whole model's gradient: each element once, however many ranks hold it.
double Trainer::squared_gradient_norm() {
  std::vector<at::Tensor> counted;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].counted_in_norm) counted.push_back(masters()[i].tensor.grad());
  }
  return optim::squared_norm_over_ranks(counted, *tensor_group_);
}

void Trainer::refuse_endless_skipping(const std::vector<at::Tensor>& gradients) {
  if (++skipped_in_a_row_ < kSkippedInARowAllowed) return;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined() && !gradients[i].isfinite().all().item<bool>()) {
      throw Error(text("rank ", world_.rank(), ": ", skipped_in_a_row_,
                       " steps in a row were skipped because gradients are not finite, the first of them ",
                       masters()[i].spec.name, "; lower train.lr or look at the data"));
    }
  }
  throw Error(text("rank ", world_.rank(), ": ", skipped_in_a_row_,
                   " steps in a row were skipped because gradients of another tensor rank are not finite"));
}

double Trainer::validation_loss() {
  const torch::NoGradGuard no_grad;
  model_->eval();
  double loss = 0;
  int64_t tokens = 0;
  const mesh::Range range = range_of(plan_, mesh_, data_rank_);
  const nn::Context context{seams(), {}};
  for (int64_t batch = 0; batch < batches_.validation_batches(); ++batch) {
    for (int64_t m = range.offset; m < range.offset + range.size; ++m) {
      const data::Batch microbatch = batches_.validation(batch, m);
      loss +=
          model_->loss_sum(microbatch.tokens_BS.to(device_), microbatch.targets_BS.to(device_), context).item<double>();
      tokens += nn::count_valid(microbatch.targets_BS);
    }
  }
  model_->train();
  const double total_loss = sum_over_data(loss, "validation loss");
  return total_loss / sum_over_data(static_cast<double>(tokens), "validation tokens");
}

std::vector<nn::Parameter> Trainer::parameters_to_save() const {
  std::vector<nn::Parameter> whole;
  if (data_rank_ != 0) return whole;
  for (const auto& [parameter, tensor, region] : masters()) {
    const at::Tensor gathered = whole_.gather(parameter.name, tensor);
    const mesh::Region all{std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape};
    if (tensor_group_->rank() == 0) whole.push_back({parameter, gathered, all});
  }
  return whole;
}

void Trainer::record_end(RunRecord& record) const {
  train::record_end(record, masters(), *optimizer_);
  record.parameters = whole_.gather(std::move(record.parameters));
  record.state = whole_.gather(std::move(record.state));
}

}  // namespace lockstep::train
