#include "lockstep/schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/schedule/in_flight.h"
#include "lockstep/schedule/validate.h"

namespace lockstep::schedule {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> messages(const std::vector<Problem>& problems) {
  std::vector<std::string> result;
  for (const Problem& problem : problems) result.push_back(problem.message());
  return result;
}

std::string refusal(std::string_view kind, const Shape& shape) {
  try {
    make_table(kind, shape);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Generators, MakeValidTablesOfEveryShapeTheyAccept) {
  int made = 0;
  for (const Generator& generator : generators()) {
    for (int ranks = -1; ranks <= 6; ++ranks) {
      for (int microbatches = -1; microbatches <= 20; ++microbatches) {
        for (int chunks = 0; chunks <= 3; ++chunks) {
          const Shape shape{ranks, microbatches, chunks};
          const bool sensible = ranks > 0 && microbatches > 0 && chunks > 0;
          if (!generator.check(shape).empty()) continue;
          ASSERT_TRUE(sensible) << generator.name;
          ++made;
          std::vector<double> bounds;
          for (int rank = 0; rank < ranks; ++rank) bounds.push_back(generator.in_flight_bound(shape, rank));
          const Table table = generator.make(shape);
          EXPECT_EQ(table.rank_of_stage, place_stages(generator.placement, ranks, chunks));
          EXPECT_THAT(messages(validate(table, {.in_flight_bound = bounds})), IsEmpty())
              << generator.name << " " << ranks << " " << microbatches << " " << chunks;
        }
      }
    }
  }
  EXPECT_GT(made, 1000);
}

// A bound that is never reached would hold nothing.
TEST(Generators, ReachTheirMemoryBounds) {
  for (const Generator& generator : generators()) {
    const Shape one{4, 16, 1}, two{4, 16, 2};
    for (const Shape& shape : {one, two}) {
      if (!generator.check(shape).empty()) continue;
      const auto peaks = in_flight_peak(generator.make(shape));
      for (int rank = 0; rank < shape.ranks; ++rank) {
        EXPECT_DOUBLE_EQ(peaks[static_cast<size_t>(rank)], generator.in_flight_bound(shape, rank)) << generator.name;
      }
    }
  }
}

TEST(Generators, OneRankIsAccumulation) {
  const std::string accumulated = "0F0,0B0,0F1,0B1,0F2,0B2\n";
  for (const char* kind : {"naive", "1f1b", "interleaved"}) EXPECT_EQ(to_string(make_table(kind, {1, 3})), accumulated);
  EXPECT_EQ(to_string(make_table("gpipe", {1, 3})), "0F0,0F1,0F2,0B2,0B1,0B0\n");
}

TEST(Generators, OfOneChunkAreThePlainSchedules) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      const Shape shape{ranks, microbatches};
      EXPECT_EQ(make_table("interleaved", shape), make_table("1f1b", shape));
      EXPECT_EQ(make_table("looped_bfs", shape), make_table("gpipe", shape));
      EXPECT_EQ(make_table("interleaved_zb", shape), make_table("zb_h1", shape));
    }
  }
}

TEST(Generators, KeepTheMicrobatchesOfOneBatchApartInNaive) {
  EXPECT_EQ(to_string(make_table("naive", {2, 2})), "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(Generators, RunBackwardsInTheOrderAskedFor) {
  EXPECT_EQ(to_string(make_table("gpipe", {1, 2, 1, BackwardOrder::rising})), "0F0,0F1,0B0,0B1\n");
  EXPECT_EQ(to_string(make_table("looped_bfs", {1, 2, 2, BackwardOrder::rising})), "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n");
  EXPECT_THAT(refusal("1f1b", {2, 2, 1, BackwardOrder::rising}),
              HasSubstr("backward_order = rising: only gpipe and looped_bfs have a choice"));
}

// PIPE-01: fewer micro-batches than ranks.
TEST(Generators, ServeFewerMicrobatchesThanRanksOrRefuseNamingBoth) {
  for (int microbatches = 1; microbatches <= 3; ++microbatches) {
    for (const char* kind : {"naive", "gpipe", "1f1b", "zb_h1", "zb_h2"}) {
      EXPECT_THAT(messages(validate(make_table(kind, {4, microbatches}))), IsEmpty()) << kind << microbatches;
    }
    EXPECT_THAT(messages(validate(make_table("looped_bfs", {4, microbatches, 2}))), IsEmpty());
    EXPECT_THAT(messages(validate(make_table("zb_v", {4, microbatches, 2}))), IsEmpty());
    for (const char* kind : {"interleaved", "interleaved_zb"}) {
      EXPECT_EQ(
          refusal(kind, {4, microbatches, 2}),
          text(
              kind, ": microbatches = ", microbatches,
              ": micro-batches visit the chunks in groups of the ranks: must be a multiple of ranks = 4 (nearest: 4)"));
    }
    EXPECT_EQ(refusal("dualpipe_v", {4, microbatches, 2}),
              text("dualpipe_v: microbatches = ", microbatches,
                   ": must be at least the number of stages, two for each of ranks = 4 (nearest: 8)"));
  }
  const Table table = make_table("1f1b", {8, 1});
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(to_string(Table{.actions_by_rank = {table.actions_by_rank[static_cast<size_t>(rank)]}}),
              text(rank, "F0,", rank, "B0\n"));
  }
}

// PIPE-10: the rule and the nearest values, before anything starts.
TEST(Generators, RefuseShapesWithTheRuleAndTheNearest) {
  EXPECT_THAT(refusal("interleaved", {4, 6, 2}), HasSubstr("must be a multiple of ranks = 4 (nearest: 4 or 8)"));
  EXPECT_THAT(refusal("interleaved", {4, 3, 2}), HasSubstr("(nearest: 4)"));
  EXPECT_EQ(refusal("interleaved", {4, 3, 1}), "") << "one chunk has no groups";
  EXPECT_THAT(refusal("gpipe", {4, 8, 2}),
              HasSubstr("chunks = 2: this schedule has 1 per rank; looped_bfs is the same with more (nearest: 1)"));
  EXPECT_THAT(refusal("zb_v", {4, 8, 1}),
              HasSubstr("chunks = 1: this schedule has 2 per rank, placed as a V (nearest: 2)"));
  EXPECT_THAT(refusal("1f1b", {0, 8}), HasSubstr("ranks = 0: must be at least 1 (nearest: 1)"));
  EXPECT_THAT(refusal("1f1b", {4, 0}), HasSubstr("microbatches = 0: must be at least 1 (nearest: 1)"));
  EXPECT_THAT(refusal("1f2b", {4, 4}), HasSubstr("(nearest: 1f1b)"));
}

// EST-05: what is alive on each stage at most.
TEST(InFlight, IsTheSchedulesOwn) {
  EXPECT_THAT(in_flight_peak(make_table("1f1b", {4, 8})), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(in_flight_peak(make_table("1f1b", {4, 2})), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(in_flight_peak(make_table("gpipe", {4, 8})), Each(8));
  EXPECT_THAT(in_flight_peak(make_table("gpipe", {4, 2})), Each(2));
  EXPECT_THAT(in_flight_peak(make_table("naive", {4, 8})), Each(1));
}

}  // namespace
}  // namespace lockstep::schedule
