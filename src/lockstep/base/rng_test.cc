#include "lockstep/base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

// Known answers of Philox4x32-10 as published with Random123 (kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRng, DependsOnSeedNameAndIndexAlone) {
  const CounterRng a(7, "layers.0.weight"), again(7, "layers.0.weight"), other_name(7, "layers.1.weight"),
      other_seed(8, "layers.0.weight");
  for (uint64_t i : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 33}) {
    EXPECT_EQ(a.bits(i), again.bits(i));
    EXPECT_NE(a.bits(i), other_name.bits(i));
    EXPECT_NE(a.bits(i), other_seed.bits(i));
  }
}

TEST(CounterRng, NormalHasItsMoments) {
  const CounterRng rng(1, "moments");
  const int n = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal(i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.1);
}

TEST(CounterRng, BelowStaysBelowAndReachesAll) {
  const CounterRng rng(3, "below");
  std::array<int, 5> seen{};
  for (int i = 0; i < 5000; ++i) ++seen.at(rng.below(i, 5));
  for (const int count : seen) EXPECT_NEAR(count, 1000, 150);
}

}  // namespace
}  // namespace lockstep
