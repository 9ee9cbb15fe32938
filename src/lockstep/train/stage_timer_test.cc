#include "lockstep/train/stage_timer.h"

#include <gtest/gtest.h>

#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

const TimingEffort kLittle{.seconds = 0, .least_rounds = 1};

void expect_refused(const spec::RunPlan& plan, const spec::Stage& stage, const std::string& begin) {
  try {
    StageTimer(plan, stage);
    FAIL() << begin;
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with(begin)) << error.what();
  }
}

// Every stage of every cut runs in every precision and recomputation, and each of its actions takes time.
TEST(StageTimer, TimesEveryStage) {
  at::set_num_threads(1);
  spec::RunPlan plan = small_plan();
  for (const spec::Stage& stage : std::vector<spec::Stage>{{.embed = true},
                                                           {.layers = {0, 1}},
                                                           {.layers = {1, 1}, .head = true},
                                                           {true, {0, 2}, true},
                                                           {.head = true}}) {
    for (const auto precision : {spec::Precision::fp64, spec::Precision::bf16}) {
      for (const auto recompute : {spec::Recompute::none, spec::Recompute::full, spec::Recompute::stage}) {
        plan.train.precision = precision;
        plan.parallel.recompute = recompute;
        StageTimer timer(plan, stage);
        for (const cost::ActionTimes& times : timer.measure(std::vector<int64_t>{1, 3}, kLittle)) {
          EXPECT_GT(times.forward_s, 0);
          EXPECT_GT(times.backward_s, 0);
          EXPECT_GT(times.input_grad_s, 0);
          EXPECT_GE(times.weight_grad_s, 0);
          EXPECT_GT(times.optimizer_s, 0);
        }
        EXPECT_GT(timer.cpu_share(), 0);
        EXPECT_LE(timer.cpu_share(), 1.01) << "one thread";
      }
    }
  }
}

TEST(StageTimer, TakesAPipelinesPlan) {
  spec::RunPlan plan = small_plan();
  plan.parallel.data = 2;
  plan.parallel.pipeline = 2;
  plan.parallel.schedule = "zb_h1";
  plan.parallel.zero = 1;
  const ModelMeasurement model = measure_model(plan, std::vector<int64_t>{1, 2}, kLittle);
  const cost::ActionTimes stage = stage_times(model.fits(), {.layers = {0, 2}, .head = true}, 2);
  EXPECT_NEAR(stage.forward_s, 2 * model.block.fit.forward.at(2) + model.head.fit.forward.at(2), 1e-12);
}

TEST(StageTimer, RefusesWhatIsNoStageOfOneRank) {
  spec::RunPlan plan = small_plan();
  expect_refused(plan, {}, "stage: holds neither");
  expect_refused(plan, {.layers = {1, 2}}, "layers = [1, 3): must be within model.layers = 2");
  EXPECT_THROW(StageTimer(plan, {.head = true}).once(0), InvalidArgument);
  plan.parallel.tensor = 2;
  expect_refused(plan, {.head = true}, "parallel.tensor = 2: one rank is measured");
}

}  // namespace
}  // namespace lockstep::train
