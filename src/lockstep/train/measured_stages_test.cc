#include "lockstep/train/measured_stages.h"

#include <gtest/gtest.h>

#include "lockstep/spec/stages.h"
#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

spec::RunPlan pipelined_plan() {
  spec::RunPlan plan = small_plan();
  plan.model.layers = 6;
  plan.parallel.pipeline = 2;
  plan.parallel.stages = spec::kMeasured;
  return plan;
}

TEST(MeasuredStages, PipelinesSoCutEqualThePlainLoop) {
  for (const char* schedule : {"1f1b", "zb_v"}) {
    spec::RunPlan plan = pipelined_plan();
    plan.parallel.schedule = schedule;
    plan.parallel.chunks = plan.parallel.schedule == "zb_v" ? 2 : 1;
    plan = with_measured_stages(plan, 2);
    EXPECT_TRUE(spec::validate(plan, 2).empty()) << plan.parallel.stages;
    EXPECT_EQ(to_string(spec::cut_into_stages(plan)), plan.parallel.stages);
    const RunRecord reference = reference_of(plan);
    for (const Outcome& outcome : run(plan, 2)) {
      const Comparison c = compare(reference, outcome.record);
      EXPECT_LE(std::max({c.max_rel_loss, c.max_rel_grad, c.rel_norm, c.max_rel_param}), 1e-10) << plan.parallel.stages;
    }
  }
}

// Several times all layers together: no noise of the clock hides it.
TEST(MeasuredStages, GiveALongHeadARankOfItsOwn) {
  spec::RunPlan plan = pipelined_plan();
  plan.model.layers = 2;
  plan.model.vocab = 4000;
  plan.model.sequence = 64;
  plan.train.microbatch = 4;
  plan.parallel.tensor = 2;
  EXPECT_EQ(with_measured_stages(plan, 4).parallel.stages, "E+2,H");
}

TEST(MeasuredStages, LeaveOtherPlansAlone) {
  spec::RunPlan plan = pipelined_plan();
  plan.parallel.stages = "E+1,5+H";
  EXPECT_EQ(with_measured_stages(plan, 2).parallel.stages, "E+1,5+H");
  plan.parallel.stages = "";
  EXPECT_EQ(with_measured_stages(plan, 2).parallel.stages, "");
}

TEST(MeasuredStages, ATrainerRefusesACutThatNobodyMeasured) {
  comm::run_ranks(2, {},
                  [](comm::ProcessGroup& world) { EXPECT_THROW(Trainer(pipelined_plan(), world), InvalidArgument); });
}

}  // namespace
}  // namespace lockstep::train
