#include "lockstep/cost/part_times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::cost {
namespace {

std::vector<TimedSize> sizes_of(const std::function<double(double)>& time) {
  std::vector<TimedSize> result;
  for (const int64_t samples : {1, 2, 4, 8}) result.push_back({samples, time(static_cast<double>(samples))});
  return result;
}

TEST(FitLinearTime, FindsWhatTheTimesWereMadeFrom) {
  const LinearTime time = fit_linear_time(sizes_of([](double n) { return 3e-4 + 5e-3 * n; }));
  EXPECT_NEAR(time.alpha_s, 3e-4, 1e-12);
  EXPECT_NEAR(time.beta_s_per_sample, 5e-3, 1e-12);
  EXPECT_NEAR(time.at(16), 3e-4 + 8e-2, 1e-12);
}

// Faster and faster per sample: no constant below 0. Shorter for more: no slope below 0.
TEST(FitLinearTime, CoefficientsAreNotNegative) {
  const LinearTime steep = fit_linear_time(sizes_of([](double n) { return n * n; }));
  EXPECT_EQ(steep.alpha_s, 0);
  EXPECT_GT(steep.beta_s_per_sample, 0);
  const LinearTime falling = fit_linear_time(sizes_of([](double n) { return 9 - n; }));
  EXPECT_GT(falling.alpha_s, 0);
  EXPECT_EQ(falling.beta_s_per_sample, 0);
  const LinearTime nothing = fit_linear_time(sizes_of([](double) { return 0; }));
  EXPECT_LT(nothing.at(8), 1e-8);
}

TEST(FitLinearTime, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(fit_linear_time({}), InvalidArgument);
  EXPECT_THROW(fit_linear_time(std::vector<TimedSize>{{2, 1}, {2, 1.1}}), InvalidArgument);
  EXPECT_THROW(fit_linear_time(std::vector<TimedSize>{{1, -1}, {2, 1}}), InvalidArgument);
  EXPECT_THROW(fit_linear_time(std::vector<TimedSize>{{1, NAN}, {2, 1}}), InvalidArgument);
}

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
