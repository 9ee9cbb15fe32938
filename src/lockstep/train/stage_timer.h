// How long a pipeline stage's actions take on this machine, measured: what predictions of a schedule's time begin with.
//
//   StageTimer timer(plan, {.layers = {4, 4}, .head = true});
//   const cost::ActionTimes times = timer.measure({{2}}).front();          // micro-batches of two sequences
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/cost/part_times.h"
#include "lockstep/nn/local_seams.h"
#include "lockstep/spec/stages.h"
#include "lockstep/train/build.h"

namespace lockstep::train {

// How long to go on measuring: until the time is over, but so many rounds at least.
struct TimingEffort {
  double seconds = 1;
  int least_rounds = 3;
};

// One stage on one rank, with its weights whole. Other ranks, and what is sent to them, are left out.
class StageTimer {
 public:
  // Of the plan it takes the model, precision, optimizer, recomputation and device; not the data.
  //   throws   InvalidArgument for a plan that no rank can run alone (parallel.tensor > 1: its ranks compute together),
  //            and for a stage that holds nothing or layers that there are not
  StageTimer(const spec::RunPlan& plan, const spec::Stage& stage);

  // One micro-batch forward and backward, one with backward in its halves, one update.
  cost::ActionTimes once(int64_t samples);

  // By size, the medians of rounds of all sizes; a first round of each is not counted.
  std::vector<cost::ActionTimes> measure(std::span<const int64_t> samples, const TimingEffort& effort = {});
  // Of the last measure(): for how much of it the thread had a core. On a CPU little less than 1, or other programs
  // have made the times longer.
  double cpu_share() const { return cpu_share_; }

 private:
  struct Pass {
    at::Tensor output, gradient;
    double forward_s = 0;
  };
  Pass forward(int64_t samples);
  double update();

  spec::RunPlan plan_;
  spec::Stage stage_;
  at::Device device_;
  nn::DeferredWeights deferred_;
  nn::LocalSeams seams_;
  Built built_;
  optim::MasterWeights master_weights_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  double cpu_share_ = 1;
};

// The model's parts by themselves: embedding, a layer, head. `samples` as for fits: two different sizes at least.
struct PartMeasurement {
  spec::Stage part;
  std::vector<cost::ActionTimes> measured;  // by size
  double cpu_share = 1;
  cost::PartTimes fit;
};
struct ModelMeasurement {
  PartMeasurement embedding, block, head;
  cost::ModelTimes fits() const { return {embedding.fit, block.fit, head.fit}; }
  double cpu_share() const { return std::min({embedding.cpu_share, block.cpu_share, head.cpu_share}); }
};
ModelMeasurement measure_model(const spec::RunPlan& plan, std::span<const int64_t> samples, const TimingEffort& effort);

}  // namespace lockstep::train
