#include "lockstep/cost/microbatches.h"

#include <gtest/gtest.h>

#include <random>

#include "lockstep/base/error.h"

namespace lockstep::cost {
namespace {

TEST(Microbatches, TheBestIsTheBestOfAllTriedOneByOne) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto from = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
    const MicrobatchCost cost{.stages = 1 + static_cast<int>(random() % 16),
                              .rows = 1 + static_cast<int64_t>(random() % 400),
                              .alpha_s = from(1e-6, 1e-3),
                              .beta_s_per_row = from(1e-7, 1e-4)};
    double best = INFINITY, best_dividing = INFINITY;
    for (int64_t m = 1; m <= cost.rows; ++m) {
      best = std::min(best, pipeline_step_s(cost, m));
      if (cost.rows % m == 0) best_dividing = std::min(best_dividing, pipeline_step_s(cost, m));
    }
    const BestMicrobatches found = best_microbatches(cost);
    EXPECT_DOUBLE_EQ(pipeline_step_s(cost, found.microbatches), best) << "seed " << seed;
    EXPECT_DOUBLE_EQ(pipeline_step_s(cost, found.dividing), best_dividing) << "seed " << seed;
    EXPECT_EQ(cost.rows % found.dividing, 0) << "seed " << seed;
  }
}

TEST(Microbatches, RefusesWhatHasNoBest) {
  const MicrobatchCost right{.stages = 4, .rows = 1024, .alpha_s = 1e-4, .beta_s_per_row = 1e-5};
  const auto expect_refused = [&](auto change, const char* field) {
    MicrobatchCost cost = right;
    change(cost);
    try {
      best_microbatches(cost);
      FAIL() << field;
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with(field)) << error.what();
    }
  };
  expect_refused([](auto& cost) { cost.stages = 0; }, "stages = 0");
  expect_refused([](auto& cost) { cost.rows = 0; }, "rows = 0");
  expect_refused([](auto& cost) { cost.alpha_s = 0; }, "alpha_s = 0");
  expect_refused([](auto& cost) { cost.beta_s_per_row = NAN; }, "beta_s_per_row = nan");
}

}  // namespace
}  // namespace lockstep::cost
