// Pipeline parallelism for modules of the user's own: each rank has one stage or several, and interprets its list of a
// schedule's table (executor.h): what runs is what schedule/ checks, draws and simulates.
//
//   const auto table = schedule::make_table("1f1b", {.ranks = world->size(), .microbatches = 8});
//   PipelineSchedule pipeline(table, {stage_of(my_layers)}, *world);
//   const StepResult result = pipeline.step(inputs, targets, torch::mse_loss);     // gradients are there
//   optimizer.step();
//
// Sends and receives are posted where the table has them; a rank waits where it uses a message. A micro-batch's
// activations are freed by its backward. Gradients add up in parameters' grad, in the order of the rank's backwards:
// they are those of one process, and have its bits where that takes the same micro-batches in the same order.
//   source   Huang et al. 2019 (GPipe); Narayanan et al. 2019, 2021 (1F1B, interleaving)
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/executor.h"
#include "lockstep/parallel/pipeline/pipeline_stage.h"
#include "lockstep/parallel/pipeline/step_agreement.h"
#include "lockstep/schedule/table.h"

namespace lockstep::parallel {

// (output, target) of one micro-batch  ->  a scalar.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

struct PipelineOptions {
  // What the loss function makes of a micro-batch. mean: over the elements of its target, so micro-batches weigh as
  // many elements as they have, and the step's loss and gradients are those of the whole batch's mean. sum: they are
  // added as they are; for losses that divide by a count of their own (valid tokens of the batch).
  enum class LossIs { mean, sum } loss_is = LossIs::mean;
  // Stages' outputs have other shapes from step to step though the inputs have the same.
  bool shapes_vary = false;
  // Called at REDUCE_GRAD of a stage of this rank, whose gradients are then complete; and at STEP.
  std::function<void(int stage)> reduce_gradient{};
  std::function<void()> optimizer_step{};
};

// On the rank that has the last stage; elsewhere undefined and empty.
struct StepResult {
  at::Tensor loss;                            // [], of the whole batch
  std::vector<at::Tensor> microbatch_losses;  // [] each, as the loss function returned them
};

class PipelineSchedule : private StageWork {
 public:
  // Every rank gives the same table: computing alone (sends and receives are added here) or more.
  //   stages   this rank's, by rising stage. Between stages there is one floating-point tensor of at most 16 dims
  //   group    rank r is rank r of the table; must outlive this
  //   throws   InvalidArgument for a table that breaks a rule of schedule::validate; with weight-gradient or sharding
  //            actions, which a module of one's own has no entry for; for another number of ranks or stages
  PipelineSchedule(schedule::Table table, std::vector<PipelineStage> stages, comm::ProcessGroup& group,
                   PipelineOptions options = {});
  PipelineSchedule(const PipelineSchedule&) = delete;
  PipelineSchedule& operator=(const PipelineSchedule&) = delete;

  // One step: every rank calls it. The batch is split evenly into the table's micro-batches, the larger ones first.
  //   inputs   [N, ...], used on the rank that has the first stage; others may give an undefined tensor
  //   targets  [N, ...], used with the loss function on the rank that has the last stage
  //   throws   InvalidArgument, the same on every rank and before anything is sent, for a batch that does not fit;
  //            what a stage throws, on its rank, whereupon the others' waits end as the group says. After that no step
  //            is possible
  StepResult step(const at::Tensor& inputs, const at::Tensor& targets, const LossFunction& loss);
  // The same for micro-batches that are cut already and may differ in more than rows (sequence length).
  StepResult step(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets, const LossFunction& loss);

  const schedule::Table& table() const { return executor_.table(); }  // with its communication
  // What the last step did, as it was done.
  const std::vector<schedule::Action>& recorded() const { return executor_.recorded(); }
  // The most micro-batches whose activations the last step held at a time, a chunk's counting 1/v.
  double in_flight_peak() const { return executor_.in_flight_peak(); }
  int64_t announcements() const { return announcements_; }  // steps in which shapes were exchanged

 private:
  StepResult run(Microbatches inputs, Microbatches targets, const LossFunction& loss);
  at::Tensor loss_of(int microbatch, const at::Tensor& output);
  double weight_of(int microbatch) const;

  at::Tensor forward(const schedule::Action& action, const at::Tensor& input) override;
  void backward(const schedule::Action& action, const at::Tensor& output, const at::Tensor& gradient) override;
  void weight_gradient(const schedule::Action& action) override;
  void unshard(int stage) override;
  void reshard(int stage) override;
  void reduce_gradient(int stage) override;
  void optimizer_step() override;
  std::optional<at::Device> device(int stage) const override;

  std::map<int, PipelineStage> stages_;
  PipelineOptions options_;
  Executor executor_;
  StepAgreement agreement_;
  bool failed_ = false;
  int64_t announcements_ = 0;

  // Of the step under way.
  Microbatches inputs_, targets_;
  const LossFunction* loss_ = nullptr;
  std::vector<at::Tensor> losses_;
};

}  // namespace lockstep::parallel
