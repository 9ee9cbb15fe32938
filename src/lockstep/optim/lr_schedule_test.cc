#include "lockstep/optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace lockstep::optim {
namespace {

LrSchedule schedule(spec::Decay decay) {
  return LrSchedule({.steps = 110, .lr = 2, .warmup_steps = 10, .decay = decay, .min_lr = 0.5});
}

TEST(LrSchedule, RisesLinearlyToThePeak) {
  for (const auto decay : {spec::Decay::none, spec::Decay::linear, spec::Decay::cosine}) {
    EXPECT_DOUBLE_EQ(schedule(decay).at(0), 0.2);
    EXPECT_DOUBLE_EQ(schedule(decay).at(4), 1.0);
    EXPECT_DOUBLE_EQ(schedule(decay).at(9), 2.0);
    EXPECT_DOUBLE_EQ(schedule(decay).at(10), 2.0);
  }
}

TEST(LrSchedule, FallsToTheMinimumAndStays) {
  EXPECT_DOUBLE_EQ(schedule(spec::Decay::none).at(1000), 2.0);
  for (const auto decay : {spec::Decay::linear, spec::Decay::cosine}) {
    EXPECT_DOUBLE_EQ(schedule(decay).at(60), 1.25);  // half way
    EXPECT_DOUBLE_EQ(schedule(decay).at(110), 0.5);
    EXPECT_DOUBLE_EQ(schedule(decay).at(1000), 0.5);
  }
  EXPECT_DOUBLE_EQ(schedule(spec::Decay::linear).at(35), 1.625);
  EXPECT_NEAR(schedule(spec::Decay::cosine).at(35), 0.5 + 1.5 * 0.8535533905932737, 1e-12);
}

TEST(LrSchedule, WithoutWarmUpBeginsAtThePeak) {
  EXPECT_DOUBLE_EQ(LrSchedule({.steps = 10, .lr = 2, .decay = spec::Decay::linear}).at(0), 2.0);
  EXPECT_DOUBLE_EQ(LrSchedule({.steps = 5, .lr = 2, .warmup_steps = 5, .decay = spec::Decay::cosine}).at(5), 2.0);
}

}  // namespace
}  // namespace lockstep::optim
