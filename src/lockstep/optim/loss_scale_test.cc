#include "lockstep/optim/loss_scale.h"

#include <gtest/gtest.h>

namespace lockstep::optim {
namespace {

TEST(LossScale, HalvesWhenAStepOverflowsAndDoublesAfterAnIntervalWithout) {
  LossScale scale({.initial = 8, .growth_interval = 3});
  for (const auto& [finite, expected] : std::vector<std::pair<bool, double>>{{true, 8},
                                                                             {true, 8},
                                                                             {true, 16},
                                                                             {true, 16},
                                                                             {true, 16},
                                                                             {false, 8},  // counting begins anew
                                                                             {true, 8},
                                                                             {true, 8},
                                                                             {false, 4},
                                                                             {false, 2},
                                                                             {true, 2}}) {
    scale.update(finite);
    EXPECT_EQ(scale.value(), expected);
  }
}

TEST(LossScale, IsOneWhereNoneIsNeeded) {
  LossScale scale;
  for (int step = 0; step < 5000; ++step) scale.update(step % 3 != 0);
  EXPECT_EQ(scale.value(), 1);
}

}  // namespace
}  // namespace lockstep::optim
