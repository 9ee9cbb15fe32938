#include "lockstep/cost/linear_time.h"

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
  EXPECT_NEAR(time.beta_s, 5e-3, 1e-12);
  EXPECT_NEAR(time.at(16), 3e-4 + 8e-2, 1e-12);
}

// Faster and faster per sample: no constant below 0. Shorter for more: no slope below 0.
TEST(FitLinearTime, CoefficientsAreNotNegative) {
  const LinearTime steep = fit_linear_time(sizes_of([](double n) { return n * n; }));
  EXPECT_EQ(steep.alpha_s, 0);
  EXPECT_GT(steep.beta_s, 0);
  const LinearTime falling = fit_linear_time(sizes_of([](double n) { return 9 - n; }));
  EXPECT_GT(falling.alpha_s, 0);
  EXPECT_EQ(falling.beta_s, 0);
  const LinearTime nothing = fit_linear_time(sizes_of([](double) { return 0; }));
  EXPECT_LT(nothing.at(8), 1e-8);
}

// What costs alpha may come several times in one measurement: messages in a row.
TEST(FitLinearTime, CountsWhatTakesAConstant) {
  std::vector<TimedSize> measured;
  for (const int64_t count : {1, 3, 10}) {
    measured.push_back({.size = 100, .time_s = 2e-3 * static_cast<double>(count) + 0.5, .count = count});
  }
  const LinearTime time = fit_linear_time(measured);
  EXPECT_NEAR(time.alpha_s, 2e-3, 1e-12);
  EXPECT_NEAR(time.beta_s, 5e-3, 1e-12);
}

TEST(FitLinearTime, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(fit_linear_time({}), InvalidArgument);
  EXPECT_THROW(fit_linear_time(std::vector<TimedSize>{{2, 1}, {2, 1.1}}), InvalidArgument);
  EXPECT_THROW(fit_linear_time(std::vector<TimedSize>{{1, -1}, {2, 1}}), InvalidArgument);
  EXPECT_THROW(fit_linear_time(std::vector<TimedSize>{{1, NAN}, {2, 1}}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::cost
