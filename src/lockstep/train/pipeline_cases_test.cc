// Failures that users of pipelines have met (docs/reported_bugs.md), each in its smallest case and in training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/distributed/collectives.h"
#include "lockstep/optim/clip.h"
#include "lockstep/parallel/pipeline/small_pipeline.h"
#include "lockstep/parallel/zero/sharded_data_parallel.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/spec/layout.h"
#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

// 4 pipeline ranks have a part each: 6 layers, the embedding and the head; or 8 stages have one.
spec::RunPlan plan_on(std::string_view layout, int64_t microbatches = 8) {
  spec::RunPlan plan = small_plan();
  plan.model.layers = 6;
  plan.train.steps = 2;
  plan.train.global_batch = microbatches;
  return spec::apply(spec::parse_layout(layout), plan);
}

int ranks_of(std::string_view layout) {
  return spec::parse_layout(layout).world_size();
}

void expect_equals_plain_loop(const spec::RunPlan& plan, std::string_view layout) {
  const RunRecord reference = reference_of(plan);
  for (const train::Outcome& rank : run(plan, ranks_of(layout))) {
    const Comparison c = compare(reference, rank.record);
    EXPECT_LE(std::max({c.max_rel_loss, c.max_rel_grad, c.rel_norm, c.max_rel_param}), 1e-10)
        << layout << ", " << plan.train.global_batch << " micro-batches: " << c.worst_parameter;
  }
}

std::vector<double> in_flight_of(const spec::RunPlan& plan, int ranks) {
  std::vector<double> peaks(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, world);
    trainer.step();
    const parallel::Executor& executor = trainer.executor();
    const auto rank = static_cast<size_t>(world.rank());
    peaks[rank] = executor.in_flight_peak();
    EXPECT_EQ(peaks[rank], schedule::in_flight_peak(executor.table())[rank]);
  });
  return peaks;
}

const at::Tensor& tensor_of(const std::vector<NamedTensor>& list, std::string_view name) {
  const auto found = std::ranges::find(list, name, &NamedTensor::name);
  LOCKSTEP_CHECK(found != list.end(), name);
  return found->tensor;
}

// GRAD-03: one matrix on two stages of two data ranks, whose gradients there are 1, 2 and 3, 4. Every copy sees the sum
// of the stages' means.
TEST(TiedOverStages, EveryCopyOfAShardedTableSeesTheSumOfBothStages) {
  for (const int zero : {1, 2}) {
    parallel::on_ranks(4, [&](comm::ProcessGroup& world) {
      const int stage = world.rank() / 2, replica = world.rank() % 2;
      const auto data_group = world.split(std::vector{2 * stage, 2 * stage + 1}, "data");
      const auto holders = world.split(std::vector{replica, replica + 2}, "tied");
      const at::Tensor table = torch::ones({3, 1}, torch::kDouble).requires_grad_();
      const auto make = [](std::vector<optim::Parameter> pieces) { return optim::make_adamw(std::move(pieces), {}); };
      parallel::ShardedDataParallel sharded({{"tied", {{"table", table, false}}}}, *data_group, make, {.stage = zero});
      (table.sum() * (world.rank() + 1)).backward();
      sharded.add_gradients_over(*holders);
      EXPECT_TRUE(at::equal(sharded.gradients().front().tensor, at::full({3, 1}, 5.0, at::kDouble)))
          << "ZeRO-" << zero << ", rank " << world.rank();
    });
  }
}

// GRAD-03 in training: the copies have the same bits after each step, and those of one process but for rounding.
TEST(TiedOverStages, CopiesStayEqualToTheBitWhateverIsSharded) {
  for (const char* layout : {"dp2-pp2", "dp2-pp2-zero1", "dp2-pp2-zero2-gpipe", "dp2-pp2-zero3-zb_h1"}) {
    spec::RunPlan plan = plan_on(layout);
    plan.train.steps = 5;
    RunRecord one_process = reference_of(plan);
    std::vector<std::vector<at::Tensor>> copies(5, std::vector<at::Tensor>(4));
    comm::run_ranks(4, {}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      Trainer trainer(plan, world);
      for (auto& of_step : copies) {
        trainer.step();
        RunRecord record;
        trainer.record_end(record);  // of a table that it holds a rank has its own copy
        of_step[static_cast<size_t>(world.rank())] = tensor_of(record.parameters, "embed.tokens.weight").clone();
      }
    });
    for (const auto& of_step : copies) {
      for (const at::Tensor& copy : of_step) EXPECT_TRUE(at::equal(copy, of_step.front())) << layout;
    }
    EXPECT_TRUE(
        at::allclose(copies.back().front(), tensor_of(one_process.parameters, "embed.tokens.weight"), 1e-9, 1e-12));
  }
}

// GRAD-10: gradients 3 and 4 on two stages, and 1, 2, 2, 4 on two stages of each rank.
TEST(NormOverStages, IsOneNumberAndClipsAllStagesAlike) {
  for (const auto& of_ranks : {std::vector<std::vector<double>>{{3}, {4}}, {{1, 2}, {2, 4}}}) {
    parallel::on_ranks(2, [&](comm::ProcessGroup& world) {
      std::vector<at::Tensor> counted, own;
      for (int rank = 0; rank < 2; ++rank) {
        for (const double value : of_ranks[static_cast<size_t>(rank)]) {
          counted.push_back(rank == world.rank() ? at::full({1}, value, at::kDouble) : at::Tensor());
          if (counted.back().defined()) own.push_back(counted.back());
        }
      }
      const double norm = std::sqrt(optim::squared_norm_over_ranks(counted, world));
      EXPECT_EQ(norm, 5);
      optim::scale(own, optim::clip_scale(norm, 1));
      const auto& before = of_ranks[static_cast<size_t>(world.rank())];
      for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i].item<double>(), before[i] / 5, 1e-6);
    });
  }
}

// ... and in training: clipped to a fifth of its norm or less, weights are one process's.
TEST(NormOverStages, ClipsAsOneProcess) {
  for (const char* layout : {"pp2", "pp2-v2-interleaved", "pp2-zb_v", "dp2-pp2-zero2"}) {
    spec::RunPlan plan = plan_on(layout);
    plan.train.clip_norm = 0.01;
    plan.train.optimizer = spec::OptimizerKind::sgd;  // does not hide a factor
    expect_equals_plain_loop(plan, layout);
  }
}

// GRAD-17: two calls of two micro-batches, each of which gives the weight a gradient of 1. The loss is scaled, once, by
// whoever accumulates; what has been added up is left alone.
TEST(AccumulationOverCalls, ScalesTheLossNotTheBuffer) {
  for (const char* kind : {"gpipe", "1f1b"}) {
    const schedule::Table table = schedule::make_table(kind, {.ranks = 2, .microbatches = 2});
    parallel::on_ranks(2, [&](comm::ProcessGroup& world) {
      const auto module = std::make_shared<torch::nn::Module>();
      const at::Tensor weight = module->register_parameter("weight", torch::ones({1}, torch::kDouble));
      const parallel::PipelineStage stage{module, [&](const at::Tensor& x) { return x * weight; }};
      parallel::PipelineSchedule pipeline(table, {stage}, world);
      const at::Tensor inputs = torch::ones({2, 1}, torch::kDouble);
      const auto half = [](const at::Tensor& output, const at::Tensor&) { return output.mean() / 2; };
      pipeline.step(inputs, inputs, half);
      pipeline.step(inputs, inputs, half);
      EXPECT_EQ(weight.grad().item<double>(), 1) << kind << ", stage " << world.rank();
    });
  }
}

// PIPE-01, EST-05: fewer micro-batches than ranks. They run, equal one process and hold min(M, K - r); or are refused
// with both numbers before a rank begins.
TEST(FewMicrobatches, RunOrAreRefusedNamingBoth) {
  for (const char* layout :
       {"pp4-gpipe", "pp4", "pp4-zb_h1", "pp4-zb_h2", "pp4-zb_v", "pp4-naive", "pp4-v2-looped_bfs"}) {
    for (const int64_t microbatches : {1, 2, 3}) expect_equals_plain_loop(plan_on(layout, microbatches), layout);
  }
  for (const char* layout : {"pp4-v2-interleaved", "pp4-v2-interleaved_zb", "pp4-dualpipe_v"}) {
    for (const int64_t microbatches : {1, 2, 3, 6}) {
      const auto problems = spec::validate(plan_on(layout, microbatches), 4);
      ASSERT_EQ(problems.size(), 1U) << layout << " " << microbatches;
      EXPECT_THAT(problems.front().message(), HasSubstr(text("with ", microbatches, " microbatches")));
      EXPECT_THAT(problems.front().message(), HasSubstr("ranks = 4"));
      EXPECT_THAT(problems.front().message(), HasSubstr(layout[4] == 'd' ? "microbatches = 8" : "microbatches = 4"));
    }
  }
}

// EST-05: what the planner counts with (schedule::in_flight_peak) is what ranks hold.
TEST(InFlight, IsTheSchedulesOwnWhileItTrains) {
  using Peaks = std::vector<double>;
  EXPECT_EQ(in_flight_of(plan_on("pp4", 8), 4), (Peaks{4, 3, 2, 1}));
  EXPECT_EQ(in_flight_of(plan_on("pp4", 2), 4), (Peaks{2, 2, 2, 1}));
  EXPECT_EQ(in_flight_of(plan_on("pp4-gpipe", 8), 4), (Peaks{8, 8, 8, 8}));
  EXPECT_EQ(in_flight_of(plan_on("pp4-gpipe", 2), 4), (Peaks{2, 2, 2, 2}));
}

// PIPE-10: layers that the stages do not divide are fine, one stage a rank is the plain schedule.
TEST(Interleaving, TakesAnyNumberOfLayersAndOfOneChunkIsPlain) {
  spec::RunPlan seven = plan_on("pp4-v2-interleaved");
  seven.model.layers = 7;
  expect_equals_plain_loop(seven, "pp4-v2-interleaved");
  spec::ParallelSpec interleaved = plan_on("pp4-v1-interleaved").parallel, plain = interleaved;
  plain.schedule = "1f1b";
  EXPECT_EQ(spec::pipeline_table(interleaved, 6).actions_by_rank, spec::pipeline_table(plain, 6).actions_by_rank);
  expect_equals_plain_loop(plan_on("pp4-v1-interleaved", 6), "pp4-v1-interleaved");
}

// OPS-07: a value that is not a number in one activation of the last stage, on one data rank. The step is skipped by
// all ranks of all stages, shown, and the next one is taken.
TEST(NotFinite, InOneStageSkipsTheStepOnAllStages) {
  for (const auto& [layout, precision] :
       {std::pair{"dp2-pp2", spec::Precision::bf16}, std::pair{"dp2-pp2-gpipe", spec::Precision::fp16},
        std::pair{"dp2-pp2-zero2", spec::Precision::fp32}}) {
    spec::RunPlan plan = small_plan();
    plan.train.precision = precision;
    plan = spec::apply(spec::parse_layout(layout), plan);
    PoisonedSeams poisoned(1, {.first_step = 1, .last_step = 1});
    comm::run_ranks(4, {.deadline = std::chrono::seconds(60)}, [&, layout = layout](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      Trainer trainer(plan, world, {.seams = world.rank() == 3 ? &poisoned.seams : nullptr});
      trainer.step();
      RunRecord before, after, next;
      trainer.record_end(before);
      const StepReport report = trainer.step();
      trainer.record_end(after);
      EXPECT_TRUE(report.skipped) << layout;
      EXPECT_TRUE(std::isnan(report.loss)) << layout;
      EXPECT_EQ(trainer.updates(), 1) << layout;
      for (size_t i = 0; i < before.parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(before.parameters[i].tensor, after.parameters[i].tensor)) << before.parameters[i].name;
      }
      EXPECT_FALSE(trainer.step().skipped) << layout;
      EXPECT_EQ(trainer.updates(), 2) << layout;
      trainer.record_end(next);
      EXPECT_FALSE(at::equal(after.parameters[0].tensor, next.parameters[0].tensor)) << layout;
    });
  }
}

}  // namespace
}  // namespace lockstep::train
