// Builds one rank's part of a RunPlan and runs its steps. There is one loop, which interprets this rank's list of
// actions (parallel/pipeline/executor.h): how many micro-batches are accumulated, and which stage does what when, is in
// the list. Here is what the actions do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/batch.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/nn/deferred_weights.h"
#include "lockstep/parallel/pipeline/executor.h"
#include "lockstep/parallel/tensor/tensor_parallel.h"
#include "lockstep/schedule/table.h"
#include "lockstep/spec/plan.h"
#include "lockstep/spec/stages.h"
#include "lockstep/trace/recorder.h"
#include "lockstep/train/build.h"
#include "lockstep/train/record.h"
#include "lockstep/train/states.h"
#include "lockstep/train/whole.h"

namespace lockstep::train {

struct StepReport {
  int64_t step = 0;      // from 1
  double loss = 0;       // sum over the global batch's valid tokens / their number, before the update
  double grad_norm = 0;  // global, before clipping
  double lr = 0;
  bool skipped = false;   // the norm was not finite: no rank updated anything
  double loss_scale = 1;  // of this step; 1 but for fp16
  int64_t tokens = 0;     // valid tokens of the global batch
  double step_s = 0;
  double compute_s = 0;                // this rank: forward, backward, optimizer
  double exposed_communication_s = 0;  // blocked in the reduction of gradients and loss
  double wait_s = 0;                   // at the start of the step, for the slowest rank
  double bubble_s = 0;                 // waiting for messages of other stages
};

struct TrainerOptions {
  trace::Recorder* recorder = nullptr;
  nn::Seams* seams = nullptr;          // instead of those of the plan; must outlive the trainer
  optim::LossScaleOptions loss_scale;  // with fp16; rank 0's holds for all
  RunRecord* record = nullptr;         // filled with every step's raw gradients, for verify
  // Where this rank's parameters live, instead of what spec::place_on_rank says.
  const std::vector<spec::ParameterPlace>* places = nullptr;
  // Training batches instead of the plan's data, by step (from 0) and micro-batch of the global batch.
  std::function<data::Batch(int64_t step, int64_t microbatch)> source;
};

class Trainer : private parallel::StageWork {
 public:
  // `world` must outlive the trainer; every rank constructs it with the same plan.
  //   throws   InvalidArgument when the plan cannot run on so many ranks
  Trainer(const spec::RunPlan& plan, comm::ProcessGroup& world, TrainerOptions options = {});

  StepReport step();

  // Mean loss per token over the validation part, the same number on every rank. NaN when there is none.
  double validation_loss();

  // What this rank holds of it.
  const nn::Transformer& model() const { return *model_; }
  // What is trained, saved and compared: the model's parameters or their fp32 masters; none where these are sharded.
  const std::vector<nn::Parameter>& masters() const { return built_.masters; }
  int64_t updates() const { return updates_done_; }  // steps that were not skipped
  // The step, as this rank's pipeline runs it.
  const parallel::Executor& executor() const { return executor_; }
  const std::vector<spec::Stage>& stages() const { return stages_; }
  int64_t samples_per_rank() const;

  // The model's parameters whole, on world rank 0; none on others. Called by every rank.
  std::vector<nn::Parameter> parameters_to_save() const;
  // Adds what the last step has left behind, whole: weights and the optimizer's state. Called by every rank.
  void record_end(RunRecord& record) const;

 private:
  struct Microbatch {
    data::Batch batch;
    nn::MicrobatchContext context;
  };

  // This rank's micro-batches; `get`: one of the global batch's.
  void load(const std::function<data::Batch(int64_t microbatch)>& get);
  int64_t valid_tokens() const;

  at::Tensor forward(const schedule::Action& action, const at::Tensor& input) override;
  void backward(const schedule::Action& action, const at::Tensor& output, const at::Tensor& gradient) override;
  void weight_gradient(const schedule::Action& action) override;
  void unshard(int stage) override;
  void reshard(int stage) override;
  void reduce_gradient(int stage) override;
  void before_optimizer_step() override;
  void optimizer_step() override;
  std::optional<at::Device> device(int /*stage*/) const override { return device_; }

  nn::Context context(const Microbatch& microbatch, int stage);
  // Whole tensors of all stages, from what this rank holds.
  std::vector<NamedTensor> of_model(std::vector<NamedTensor> own) const;
  void refuse_endless_skipping();

  spec::RunPlan plan_;
  comm::ProcessGroup& world_;
  TrainerOptions options_;
  mesh::Mesh mesh_;
  int data_rank_ = 0;
  at::Device device_;

  data::Batches batches_;
  std::vector<spec::ParameterPlace> places_;  // of the model's parameters
  Built built_;                               // of what this rank holds
  std::shared_ptr<nn::Transformer> model_;
  // This rank's peers along each axis.
  std::unique_ptr<comm::ProcessGroup> data_group_, tensor_group_, pipeline_group_;
  std::unique_ptr<comm::ProcessGroup> model_group_;  // tensor and pipeline ranks: one copy of the model
  std::unique_ptr<comm::ProcessGroup> batch_group_;  // data and pipeline ranks: the losses of the batch
  nn::DeferredWeights deferred_;                     // what I has put off and W computes
  parallel::TensorParallel tensor_parallel_;
  WholeTensors whole_;
  std::vector<spec::Stage> stages_;
  parallel::Executor executor_, validation_;
  std::unique_ptr<States> states_;
  optim::LrSchedule lr_schedule_;
  optim::LossScale loss_scale_;

  // Of the step under way.
  std::vector<Microbatch> microbatches_;
  double local_loss_ = 0;
  StepReport report_;

  int64_t steps_done_ = 0;
  bool validated_ = false;
  int64_t updates_done_ = 0;  // stands still on a skipped step, and so does the learning rate
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace lockstep::train
