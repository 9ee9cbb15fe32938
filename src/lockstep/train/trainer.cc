#include "lockstep/train/trainer.h"

#include <torch/torch.h>

#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/device.h"
#include "lockstep/optim/clip.h"
#include "lockstep/spec/microbatches.h"
#include "lockstep/spec/names.h"

namespace lockstep::train {
namespace {

constexpr int64_t kSkippedInARowAllowed = 20;

mesh::Mesh checked_mesh(const spec::RunPlan& plan, int world_size) {
  spec::refuse(spec::validate(plan, world_size));
  return spec::make_mesh(plan.parallel, world_size);
}

// This rank's contiguous run of the global batch's micro-batches.
mesh::Range range_of(const spec::RunPlan& plan, const mesh::Mesh& mesh, int data_rank) {
  return spec::microbatches_of_rank(spec::num_microbatches(plan.train), {data_rank, mesh.size(mesh::Axis::data)});
}

schedule::Table checked_table(int64_t microbatches) {
  schedule::Table table = schedule::accumulation({.ranks = 1, .microbatches = static_cast<int>(microbatches)});
  const auto problems = schedule::validate(table);
  LOCKSTEP_CHECK(problems.empty(), problems.front().message());
  return table;
}

parallel::DataParallelOptions data_parallel_options(const spec::ParallelSpec& parallel) {
  return {.reduction = comm::Reduction::sum,  // the loss is already divided by the global count of tokens
          .bucket_bytes = static_cast<int64_t>(parallel.bucket_mb * (1 << 20)),
          .overlap = parallel.overlap,
          .fixed_tree = parallel.reduction == spec::Reduction::fixed_tree,
          .finish_in_backward = false};
}

std::vector<parallel::NamedTensor> named(const std::vector<nn::Parameter>& parameters) {
  std::vector<parallel::NamedTensor> result;
  for (const auto& parameter : parameters) result.push_back({parameter.spec.name, parameter.tensor});
  return result;
}

}  // namespace

Trainer::Trainer(const spec::RunPlan& plan, comm::ProcessGroup& world, TrainerOptions options)
    : plan_(plan),
      world_(world),
      options_(options),
      mesh_(checked_mesh(plan, world.size())),
      data_rank_(mesh_.coordinates(world.rank())[mesh::Axis::data]),
      device_(pick_device(std::string(spec::name(plan.run.device)), world.rank())),
      batches_(plan),
      model_(make_model(plan, device_)),
      local_seams_(static_cast<uint64_t>(plan.train.seed)),
      optimizer_(make_optimizer(plan.train, model_->parameter_list())),
      lr_schedule_(plan.train),
      table_(checked_table(range_of(plan, mesh_, data_rank_).size)) {
  world_.set_recorder(options_.recorder);
  const mesh::Axis data_axis[] = {mesh::Axis::data};
  data_group_ = world_.split(mesh_.peers(world_.rank(), data_axis), "data");
  data_parallel_ = std::make_unique<parallel::DataParallel>(named(model_->parameter_list()), *data_group_,
                                                            data_parallel_options(plan.parallel));
}

int64_t Trainer::samples_per_rank() const {
  return static_cast<int64_t>(table_.microbatches) * plan_.train.microbatch;
}

double Trainer::sum_over_ranks(double value, std::string_view tag) {
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
  report_.tokens = static_cast<int64_t>(sum_over_ranks(static_cast<double>(valid_tokens), "valid tokens"));
  report_.wait_s = now_s() - wait_start_s;

  data_parallel_->zero_grad();
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
  const nn::Context context{options_.seams != nullptr ? *options_.seams : local_seams_.seams(), microbatch.context};
  const at::Tensor sum = model_->loss_sum(microbatch.batch.tokens_BS, microbatch.batch.targets_BS, context);
  microbatch.loss = sum / std::max<int64_t>(report_.tokens, 1);
  local_loss_ += microbatch.loss.item<double>();
}

void Trainer::backward(Microbatch& microbatch, bool last) {
  const at::Tensor loss = std::exchange(microbatch.loss, {});
  if (last) {
    loss.backward();
  } else {
    const auto local_only = data_parallel_->no_sync();
    loss.backward();
  }
}

void Trainer::reduce_gradient() {
  const double start_s = now_s();
  data_parallel_->finish();
  report_.loss = sum_over_ranks(local_loss_, "loss");
  report_.exposed_communication_s += now_s() - start_s;
}

void Trainer::optimizer_step() {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model_->parameter_list()) gradients.push_back(parameter.tensor.grad());
  // Every rank holds the same reduced gradients, so every rank takes the same decision.
  report_.grad_norm = std::sqrt(optim::squared_norm(gradients));
  report_.lr = lr_schedule_.at(updates_done_);
  if (options_.record != nullptr) {
    options_.record->steps.push_back({report_.loss, report_.grad_norm, copy_gradients(model_->parameter_list())});
  }
  report_.skipped = !std::isfinite(report_.grad_norm);
  if (report_.skipped) return refuse_endless_skipping(gradients);
  skipped_in_a_row_ = 0;
  optim::scale(gradients, optim::clip_scale(report_.grad_norm, plan_.train.clip_norm));
  optimizer_->step(report_.lr);
  ++updates_done_;
}

void Trainer::refuse_endless_skipping(const std::vector<at::Tensor>& gradients) {
  if (++skipped_in_a_row_ < kSkippedInARowAllowed) return;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined() && !gradients[i].isfinite().all().item<bool>()) {
      throw Error(text("rank ", world_.rank(), ": ", skipped_in_a_row_,
                       " steps in a row were skipped because gradients are not finite, the first of them ",
                       model_->parameter_list()[i].spec.name, "; lower train.lr or look at the data"));
    }
  }
}

double Trainer::validation_loss() {
  const torch::NoGradGuard no_grad;
  model_->eval();
  double loss = 0;
  int64_t tokens = 0;
  const mesh::Range range = range_of(plan_, mesh_, data_rank_);
  const nn::Context context{options_.seams != nullptr ? *options_.seams : local_seams_.seams(), {}};
  for (int64_t batch = 0; batch < batches_.validation_batches(); ++batch) {
    for (int64_t m = range.offset; m < range.offset + range.size; ++m) {
      const data::Batch microbatch = batches_.validation(batch, m);
      loss +=
          model_->loss_sum(microbatch.tokens_BS.to(device_), microbatch.targets_BS.to(device_), context).item<double>();
      tokens += nn::count_valid(microbatch.targets_BS);
    }
  }
  model_->train();
  const double total_loss = sum_over_ranks(loss, "validation loss");
  return total_loss / sum_over_ranks(static_cast<double>(tokens), "validation tokens");
}

}  // namespace lockstep::train
