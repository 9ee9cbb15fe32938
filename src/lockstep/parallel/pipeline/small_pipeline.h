// For tests: small models cut into stages, run as a pipeline of ranks that are threads, and in one process.
#pragma once

#include <torch/torch.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/distributed/init.h"
#include "lockstep/parallel/pipeline/pipeline_schedule.h"
#include "lockstep/schedule/generators.h"

namespace lockstep::parallel {

using Blocks = std::vector<torch::nn::Sequential>;  // one per stage

// [rows, width] fp64, the same for the same seed.
inline at::Tensor some_numbers(int64_t rows, uint64_t seed, int64_t width = 6) {
  return torch::randn({rows, width}, at::detail::createCPUGenerator(seed), torch::kDouble);
}

// Without parameters.
inline PipelineStage identity_stage() {
  return {nullptr, [](const at::Tensor& x) { return x * 1; }};
}

inline Blocks make_blocks(int stages, int64_t width = 6) {
  torch::manual_seed(11);
  Blocks blocks;
  for (int i = 0; i < stages; ++i) {
    torch::nn::Sequential block(torch::nn::Linear(width, width + 1), torch::nn::Tanh(),
                                torch::nn::Linear(width + 1, width));
    block->to(torch::kDouble);
    blocks.push_back(block);
  }
  return blocks;
}

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : module.parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

// A step of a pipeline, or of one process: per stage the gradients.
struct Outcome {
  std::vector<std::vector<at::Tensor>> gradients;
  double loss = 0;
  std::vector<double> microbatch_losses;
  std::vector<double> in_flight_peak;                   // by rank
  std::vector<std::vector<schedule::Action>> recorded;  // by rank
  std::vector<std::vector<schedule::Action>> expected;  // by rank, the table's
};

struct PipelineRun {
  schedule::Table table;
  at::Tensor inputs, targets;
  LossFunction loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  PipelineOptions options{};
  int steps = 1;
};

inline void on_ranks(int ranks, const std::function<void(comm::ProcessGroup&)>& body) {
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(30)}, [&](comm::ProcessGroup& world) {
    prepare_rank_thread(1);
    body(world);
  });
}

// This rank's stages, of copies of the blocks.
inline std::vector<PipelineStage> own_stages(const schedule::Table& table, const Blocks& blocks, int rank,
                                             std::vector<std::shared_ptr<torch::nn::Module>>* copies = nullptr) {
  std::vector<PipelineStage> stages;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    if (table.rank_of_stage[stage] != rank) continue;
    const torch::nn::Sequential copy(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(blocks[stage]->clone()));
    stages.push_back(stage_of(copy));
    if (copies) copies->push_back(copy.ptr());
  }
  return stages;
}

// The last of the run's steps.
inline Outcome run_pipeline(const PipelineRun& run, const Blocks& blocks) {
  Outcome outcome;
  const auto ranks = static_cast<size_t>(run.table.ranks);
  outcome.gradients.resize(blocks.size());
  outcome.in_flight_peak.resize(ranks);
  outcome.recorded.resize(ranks);
  outcome.expected.resize(ranks);
  on_ranks(run.table.ranks, [&](comm::ProcessGroup& world) {
    const auto rank = static_cast<size_t>(world.rank());
    std::vector<std::shared_ptr<torch::nn::Module>> copies;
    PipelineSchedule pipeline(run.table, own_stages(run.table, blocks, world.rank(), &copies), world, run.options);
    for (int step = 0; step < run.steps; ++step) {
      for (const auto& copy : copies) copy->zero_grad();
      const StepResult result = pipeline.step(run.inputs, run.targets, run.loss);
      if (!result.loss.defined()) continue;
      outcome.loss = result.loss.item<double>();
      outcome.microbatch_losses.clear();
      for (const auto& loss : result.microbatch_losses) outcome.microbatch_losses.push_back(loss.item<double>());
    }
    auto copy = copies.begin();
    for (size_t stage = 0; stage < blocks.size(); ++stage) {
      if (run.table.rank_of_stage[stage] == world.rank()) outcome.gradients[stage] = gradients_of(**copy++);
    }
    outcome.in_flight_peak[rank] = pipeline.in_flight_peak();
    outcome.recorded[rank] = pipeline.recorded();
    outcome.expected[rank] = pipeline.table().actions_by_rank[rank];
  });
  return outcome;
}

// One process, the whole batch at once.
inline Outcome run_whole(const PipelineRun& run, const Blocks& blocks) {
  at::Tensor x = run.inputs;
  for (auto block : blocks) {
    block->zero_grad();
    x = block->forward(x);
  }
  const at::Tensor loss = run.loss(x, run.targets);
  loss.backward();
  Outcome outcome{.loss = loss.item<double>()};
  for (const auto& block : blocks) outcome.gradients.push_back(gradients_of(*block));
  return outcome;
}

// max|x - y| over the largest |y| of the parameter, or of 1e-3 of all: the largest over parameters.
inline double worst_difference(const Outcome& actual, const Outcome& expected) {
  double largest = 0, worst = 0;
  for (const auto& stage : expected.gradients) {
    for (const auto& y : stage) largest = std::max(largest, y.abs().max().item<double>());
  }
  for (size_t stage = 0; stage < expected.gradients.size(); ++stage) {
    for (size_t i = 0; i < expected.gradients[stage].size(); ++i) {
      const at::Tensor &x = actual.gradients[stage].at(i), &y = expected.gradients[stage][i];
      const double scale = std::max(y.abs().max().item<double>(), 1e-3 * largest);
      worst = std::max(worst, (x - y).abs().max().item<double>() / scale);
    }
  }
  return worst;
}

// A table of the kind, if it takes this shape; with two chunks per rank if it takes chunks.
inline std::optional<schedule::Table> table_of(std::string_view kind, int ranks, int microbatches) {
  const int chunks = kind == "interleaved" || kind == "looped_bfs" ? 2 : 1;
  const schedule::Shape shape{.ranks = ranks, .microbatches = microbatches, .chunks = chunks};
  if (!schedule::find_generator(kind).check(shape).empty()) return std::nullopt;
  return schedule::make_table(kind, shape);
}

inline constexpr std::array<std::string_view, 5> kWholeBackwardKinds = {"naive", "gpipe", "1f1b", "interleaved",
                                                                        "looped_bfs"};

}  // namespace lockstep::parallel
