#include "lockstep/cost/part_times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/passes.h"

namespace lockstep::cost {
namespace {

PartTimes part(double scale) {
  const std::vector<int64_t> samples = {1, 2, 4};
  std::vector<ActionTimes> measured;
  for (const int64_t n : samples) {
    const double time = scale * (1 + 2 * static_cast<double>(n));
    measured.push_back({time, 2 * time, 1.25 * time, 0.75 * time, 7 * scale});
  }
  return fit_part_times(samples, measured);
}

TEST(StageTimes, AreTheSumOfWhatTheStageHolds) {
  const ModelTimes times{.embedding = part(1), .block = part(10), .head = part(100)};
  const ActionTimes middle = stage_times(times, {.layers = {2, 3}}, 8);
  EXPECT_NEAR(middle.forward_s, 30 * 17, 1e-9);
  EXPECT_NEAR(middle.backward_s, 60 * 17, 1e-9);
  EXPECT_NEAR(middle.input_grad_s, 37.5 * 17, 1e-9);
  EXPECT_NEAR(middle.weight_grad_s, 22.5 * 17, 1e-9);
  EXPECT_NEAR(middle.optimizer_s, 210, 1e-9);
  const ActionTimes all = stage_times(times, {.embed = true, .layers = {0, 5}, .head = true}, 2);
  EXPECT_NEAR(all.forward_s, 151 * 5, 1e-9);
  EXPECT_NEAR(all.optimizer_s, 7 * 151, 1e-9);
}

// Each part is on one stage, which has every micro-batch once, whatever the kind calls the actions.
TEST(StepCosts, CountWhatTheTableDoes) {
  const ActionTimes one{.forward_s = 1, .backward_s = 20, .input_grad_s = 300, .weight_grad_s = 4000, .optimizer_s = 7};
  const ActionTimes two{.forward_s = 2, .backward_s = 40, .input_grad_s = 600, .weight_grad_s = 8000};
  const auto layer_s = [&](const schedule::Table& table) { return step_costs(two, one, two, table).layer; };
  const schedule::Shape shape{.ranks = 2, .microbatches = 5};
  const schedule::Table whole = schedule::make_table("1f1b", shape);
  EXPECT_DOUBLE_EQ(layer_s(whole), 5 * 21 + 7);
  EXPECT_DOUBLE_EQ(layer_s(schedule::add_step(schedule::add_communication(schedule::add_recompute(whole)))),
                   5 * 22 + 7);
  EXPECT_DOUBLE_EQ(layer_s(schedule::make_table("zb_h1", shape)), 5 * 4301 + 7);
  const spec::PartCosts costs = step_costs(two, one, two, whole);
  EXPECT_DOUBLE_EQ(costs.embedding, 5 * 42);
  EXPECT_DOUBLE_EQ(costs.head, 5 * 42);
}

// Forward and backward of the whole model are 3 K (alpha + beta b).
TEST(MicrobatchCostOfAModel, IsAStagesShare) {
  const ModelTimes times{.embedding = part(1), .block = part(10), .head = part(100)};
  const MicrobatchCost cost = microbatch_cost(times, 6, 4, 64);
  EXPECT_EQ(cost.stages, 4);
  EXPECT_EQ(cost.rows, 64);
  const ActionTimes model = stage_times(times, {.embed = true, .layers = {0, 6}, .head = true}, 8);
  EXPECT_NEAR(3 * 4 * (cost.alpha_s + 8 * cost.beta_s_per_row), model.forward_s + model.backward_s, 1e-9);
  EXPECT_NEAR(best_microbatches_estimate(cost), std::sqrt(3 * 2 * 64.0), 1e-9) << "beta = 2 alpha, K - 1 = 3";
}

}  // namespace
}  // namespace lockstep::cost
