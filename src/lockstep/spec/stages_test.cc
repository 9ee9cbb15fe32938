#include "lockstep/spec/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "lockstep/base/error.h"
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

using Costs = std::vector<double>;

// What ranks have, the most first, then what stages have.
std::pair<Costs, Costs> loads(const std::vector<Stage>& stages, const PartCosts& costs, const std::vector<int>& ranks) {
  Costs of_stage, of_rank(static_cast<size_t>(*std::ranges::max_element(ranks)) + 1);
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    of_stage.push_back((stage.embed ? costs.embedding : 0) + costs.layer * static_cast<double>(stage.layers.size) +
                       (stage.head ? costs.head : 0));
    of_rank[static_cast<size_t>(ranks[i])] += of_stage.back();
  }
  std::ranges::sort(of_rank, std::greater());
  std::ranges::sort(of_stage, std::greater());
  return {of_rank, of_stage};
}

// Calls visit(stages) for every cut of the model into stages of one part at least.
void for_each_cut(int64_t layers, size_t stages, std::vector<Stage>& begun,
                  const std::function<void(const std::vector<Stage>&)>& visit) {
  const int64_t at = begun.empty() ? 0 : begun.back().layers.offset + begun.back().layers.size;
  const bool first = begun.empty(), last = begun.size() + 1 == stages;
  for (int64_t count = last ? layers - at : first ? 0 : 1; count <= layers - at; ++count) {
    const Stage stage{.embed = first, .layers = {at, count}, .head = last};
    begun.push_back(stage);
    if (last) {
      visit(begun);
    } else {
      for_each_cut(layers, stages, begun, visit);
    }
    begun.pop_back();
  }
}

// No cut is better: whole costs, so that sums are exact and cuts with the same loads compare equal.
TEST(CutIntoStages, IsTheBestOfAllCuts) {
  std::mt19937 random(1);
  const auto below = [&random](unsigned end) { return static_cast<int64_t>(random() % end); };
  struct Kind {
    const char* schedule;
    int64_t chunks;
  };
  int cuts = 0;
  for (const auto& [schedule, chunks] :
       std::vector<Kind>{{"1f1b", 1}, {"interleaved", 2}, {"interleaved", 3}, {"zb_v", 2}, {"dualpipe_v", 2}}) {
    for (int i = 0; i < 60; ++i) {
      const int64_t ranks = 2 + below(chunks == 1 ? 4 : 2);
      const int64_t layers = ranks * chunks - 2 + below(6);
      const RunPlan plan = pipeline(schedule, ranks, chunks, std::max<int64_t>(1, layers));
      const PartCosts costs{.embedding = static_cast<double>(below(20)),
                            .layer = static_cast<double>(1 + below(20)),
                            .head = static_cast<double>(below(60))};
      const std::vector<int> rank_of = rank_of_stage(plan.parallel);
      const std::vector<Stage> found = cut_into_stages(plan, costs);
      const auto least = loads(found, costs, rank_of);
      bool is_a_cut = false;
      std::vector<Stage> begun;
      for_each_cut(plan.model.layers, rank_of.size(), begun, [&](const std::vector<Stage>& stages) {
        ++cuts;
        is_a_cut = is_a_cut || stages == found;
        EXPECT_LE(least, loads(stages, costs, rank_of))
            << schedule << ": " << to_string(found) << " is worse than " << to_string(stages) << " with "
            << costs.embedding << ", " << costs.layer << ", " << costs.head;
      });
      EXPECT_TRUE(is_a_cut) << to_string(found);
    }
  }
  EXPECT_GT(cuts, 5000);
}

TEST(CutIntoStages, StaysWhereTheUserCuts) {
  RunPlan plan = pipeline("zb_v", 2, 2, 6);
  plan.parallel.stages = "E+1,2,2,1+H";
  EXPECT_EQ(to_string(cut_into_stages(plan)), plan.parallel.stages);
}

TEST(CutIntoStages, WaitsForTimesWhereTheyAreToBeMeasured) {
  RunPlan plan = pipeline("1f1b", 2, 1, 4);
  EXPECT_FALSE(awaits_measuring(plan.parallel));
  plan.parallel.stages = kMeasured;
  EXPECT_TRUE(awaits_measuring(plan.parallel));
  EXPECT_THAT(validate_pipeline(plan, 1), testing::IsEmpty());
  EXPECT_EQ(to_string(cut_into_stages(plan, {.embedding = 3, .layer = 1, .head = 1})), "E+1,3+H");
  EXPECT_THAT([&] { cut_into_stages(plan); },
              testing::ThrowsMessage<InvalidArgument>(
                  "parallel.stages = \"measured\": lockstep train and verify measure before their ranks start; a plan "
                  "that runs says where it is cut (nearest: \"E+2,2+H\")"));
  plan.parallel.pipeline = 1;
  EXPECT_FALSE(awaits_measuring(plan.parallel)) << "one stage is the whole model";
  EXPECT_EQ(to_string(cut_into_stages(plan)), "E+4+H");
}

TEST(StepTable, IsOfTheDataRankWithMostMicrobatches) {
  RunPlan plan = pipeline("1f1b", 2, 1, 4);
  plan.train.global_batch = 10;
  plan.train.microbatch = 2;
  EXPECT_EQ(step_table(plan, 2).microbatches, 5);
  EXPECT_EQ(step_table(plan, 4).microbatches, 3);
}

}  // namespace
}  // namespace lockstep::spec
