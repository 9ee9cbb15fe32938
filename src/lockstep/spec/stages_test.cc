#include "lockstep/spec/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::spec {
namespace {

RunPlan pipeline(std::string_view schedule, int64_t ranks, int64_t chunks, int64_t layers) {
  RunPlan plan;
  plan.model.layers = layers;
  plan.model.hidden = plan.model.ffn_hidden = 256;  // a layer costs far more than the head
  plan.model.vocab = 16;
  plan.parallel.schedule = schedule;
  plan.parallel.pipeline = ranks;
  plan.parallel.chunks = chunks;
  return plan;
}

std::vector<int64_t> layers_by_rank(const RunPlan& plan) {
  const std::vector<Stage> stages = cut_into_stages(plan);
  const std::vector<int> ranks = rank_of_stage(plan.parallel);
  std::vector<int64_t> layers(static_cast<size_t>(plan.parallel.pipeline));
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    layers[static_cast<size_t>(ranks[stage])] += stages[stage].layers.size;
  }
  return layers;
}

TEST(CutIntoStages, LeavesTheLongestStageShortest) {
  EXPECT_EQ(to_string(cut_into_stages(pipeline("1f1b", 2, 1, 4))), "E+2,2+H");
  EXPECT_EQ(to_string(cut_into_stages(pipeline("interleaved", 2, 2, 4))), "E+1,1,1,1+H");
}

// Six layers on four stages: two of the stages have two, and must not be of one rank, wherever the schedule has them.
TEST(CutIntoStages, GivesRanksAsManyLayersWhereTheirStagesCannotHaveAsMany) {
  for (const char* schedule : {"interleaved", "looped_bfs", "interleaved_zb", "zb_v", "dualpipe_v"}) {
    for (int64_t ranks = 2; ranks <= 4; ++ranks) {
      for (int64_t per_rank = 2; per_rank <= 9; ++per_rank) {
        const RunPlan plan = pipeline(schedule, ranks, 2, ranks * per_rank);
        EXPECT_THAT(layers_by_rank(plan), testing::Each(per_rank))
            << schedule << ", " << ranks << " ranks: " << to_string(cut_into_stages(plan));
      }
    }
  }
}

TEST(CutIntoStages, StaysWhereTheUserCuts) {
  RunPlan plan = pipeline("zb_v", 2, 2, 6);
  plan.parallel.stages = "E+1,2,2,1+H";
  EXPECT_EQ(to_string(cut_into_stages(plan)), plan.parallel.stages);
}

}  // namespace
}  // namespace lockstep::spec
