#include "lockstep/schedule/clock_cycles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::schedule {
namespace {

std::vector<Wave> waves(int microbatches, int stages) {
  std::vector<Wave> result;
  for (const Wave& wave : clock_cycles(microbatches, stages)) result.push_back(wave);
  return result;
}

// HW5's example is in tests/golden; here the definition.
TEST(ClockCycles, HoldEveryCellOnceInTheCycleOfItsSum) {
  for (int microbatches = 1; microbatches <= 9; ++microbatches) {
    for (int stages = 1; stages <= 9; ++stages) {
      const auto all = waves(microbatches, stages);
      ASSERT_EQ(all.size(), static_cast<size_t>(microbatches + stages - 1));
      size_t cells = 0;
      for (size_t cycle = 0; cycle < all.size(); ++cycle) {
        for (size_t i = 0; i < all[cycle].size(); ++i) {
          const auto [microbatch, stage] = all[cycle][i];
          EXPECT_EQ(microbatch + stage, static_cast<int>(cycle));
          EXPECT_TRUE(microbatch >= 0 && microbatch < microbatches && stage >= 0 && stage < stages);
          if (i > 0) EXPECT_GT(stage, all[cycle][i - 1].stage) << "rising by stage";
          ++cells;
        }
      }
      EXPECT_EQ(cells, static_cast<size_t>(microbatches * stages));
    }
  }
}

TEST(ClockCycles, OfNothingAreNone) {
  EXPECT_THAT(waves(0, 3), ::testing::IsEmpty());
}

TEST(ClockCycles, RefuseWhenTheFirstIsAskedForNotBefore) {
  for (const auto& [microbatches, stages] : {std::pair(-1, 3), {3, 0}, {0, 0}, {3, -2}}) {
    const ClockCycles cycles = clock_cycles(microbatches, stages);
    EXPECT_THROW(cycles.begin(), InvalidArgument) << microbatches << " " << stages;
  }
}

}  // namespace
}  // namespace lockstep::schedule
