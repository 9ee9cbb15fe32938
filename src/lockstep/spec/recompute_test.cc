#include "lockstep/spec/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::spec {
namespace {

using ::testing::ElementsAre;
using Segment = RecomputeSegment;

// Layer forwards that are done twice.
int64_t recomputed_layers(Recompute mode, int64_t layers) {
  int64_t sum = 0;
  for (const Segment& segment : recompute_segments(mode, {0, layers}))
    sum += segment.recomputed ? segment.layers.size : 0;
  return sum;
}

// The inputs kept, and the layers of the longest segment, whose activations are alive while its backward runs.
int64_t stored(Recompute mode, int64_t layers) {
  const auto segments = recompute_segments(mode, {0, layers});
  int64_t longest = 0;
  for (const Segment& segment : segments) longest = std::max(longest, segment.layers.size);
  return static_cast<int64_t>(segments.size()) + longest;
}

TEST(RecomputeSegments, OfEachMode) {
  EXPECT_THAT(recompute_segments(Recompute::none, {2, 5}), ElementsAre(Segment{{2, 5}, false}));
  EXPECT_THAT(recompute_segments(Recompute::selective, {0, 5}), ElementsAre(Segment{{0, 5}, false}));
  EXPECT_THAT(recompute_segments(Recompute::full, {3, 2}), ElementsAre(Segment{{3, 1}, true}, Segment{{4, 1}, true}));
  EXPECT_THAT(recompute_segments(Recompute::sqrt, {1, 7}),
              ElementsAre(Segment{{1, 3}, true}, Segment{{4, 2}, true}, Segment{{6, 2}, false}));
  EXPECT_THAT(recompute_segments(Recompute::sqrt, {0, 1}), ElementsAre(Segment{{0, 1}, false}));
}

TEST(RecomputeSegments, CoverEveryLayerOnceInOrder) {
  for (const Recompute mode : {Recompute::none, Recompute::full, Recompute::sqrt, Recompute::selective}) {
    for (int64_t layers = 1; layers <= 130; ++layers) {
      int64_t next = 7;
      for (const Segment& segment : recompute_segments(mode, {7, layers})) {
        EXPECT_EQ(segment.layers.offset, next);
        EXPECT_GE(segment.layers.size, 1);
        next += segment.layers.size;
      }
      EXPECT_EQ(next, 7 + layers);
    }
  }
}

// Golden values of "模型并行——流水线并行与张量并行", 4.3 and exercise 6: 64 and 100 layers, every sqrt(n)-th output
// kept: 16 and 20 stored, 56 and 90 layer forwards more.
TEST(RecomputeSegments, CountWhatTheDocumentsCount) {
  EXPECT_EQ(stored(Recompute::sqrt, 64), 16);
  EXPECT_EQ(recomputed_layers(Recompute::sqrt, 64), 56);
  EXPECT_EQ(stored(Recompute::sqrt, 100), 20);
  EXPECT_EQ(recomputed_layers(Recompute::sqrt, 100), 90);
  EXPECT_EQ(recomputed_layers(Recompute::none, 64), 0);
  EXPECT_EQ(recomputed_layers(Recompute::full, 64), 64);
}

}  // namespace
}  // namespace lockstep::spec
