#include "lockstep/schedule/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/base/error.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/passes.h"

namespace lockstep::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlaceStages, AsALoopAndAsAV) {
  EXPECT_THAT(place_stages(Placement::loop, 3, 2), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(place_stages(Placement::v, 3, 2), ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(place_stages(Placement::v, 2, 3), ElementsAre(0, 1, 1, 0, 0, 1));
}

TEST(ParseTable, DropsIdleSlotsAndTakesEitherLineEnd) {
  const Table table = parse_table("0F0,,0F1,,0B0,0B1\r\n,1F0,1B0,1F1,1B1,\r\n");
  EXPECT_EQ(table.ranks, 2);
  EXPECT_EQ(table.microbatches, 2);
  EXPECT_THAT(table.rank_of_stage, ElementsAre(0, 1));
  EXPECT_EQ(to_string(table), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(parse_table("0F0 , 0B0"), parse_table("0F0,0B0\n"));
}

TEST(ParseTable, KeepsPairsThatMayOverlap) {
  const std::string csv = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n";
  const Table table = parse_table(csv);
  EXPECT_EQ(table.actions_by_rank[0].size(), 4U);
  EXPECT_TRUE(table.actions_by_rank[0][1].overlaps_next);
  EXPECT_EQ(to_string(table), csv);
}

TEST(ParseTable, OfWhatIsWrittenIsTheSame) {
  for (const Generator& generator : generators()) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        const Shape shape{ranks, microbatches, generator.check({ranks, microbatches, 1}).empty() ? 1 : 2};
        if (!generator.check(shape).empty()) continue;
        const Table computing = generator.make(shape);
        const Table whole = add_sharding(add_step(add_communication(add_recompute(computing))));
        for (const Table& table : {computing, whole}) {
          EXPECT_EQ(parse_table(to_string(table)), table) << generator.name << " " << ranks << " " << microbatches;
          EXPECT_EQ(to_string(parse_table(to_string(table))), to_string(table));
        }
      }
    }
  }
}

std::string refusal(const std::string& csv) {
  try {
    parse_table(csv);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ParseTable, RefusesWhatIsNoActionNamingTheCell) {
  EXPECT_EQ(refusal("0F0,0B0\n1F0,1X0\n"),
            "line 2, cell 2 = 1X0: must be an action such as 2F0, 1B3, 0SEND_F1 or (0F3;3B1)OVERLAP_F_B (nearest: an "
            "empty cell for a slot without action)");
  for (const char* cell :
       {"F", "0", "F0", "0F", "0STEP", "0UNSHARD1", "0F0x", "0f0", "-1F0", "0F-1", "0F99999999999", "99999999F0",
        "(0F0;0B0)", "(0F0)OVERLAP_F_B", "(0F0;0B0;0F1)OVERLAP_F_B", "(0F0;0B0", "0F0 0B0", "OVERLAP_F_B", "\xff"}) {
    EXPECT_THAT(refusal(std::string("0F0,") + cell), HasSubstr("line 1, cell 2")) << cell;
  }
  EXPECT_THAT(refusal(""), HasSubstr("no forward"));
  EXPECT_THAT(refusal("\n\n,,,\n"), HasSubstr("no forward"));
}

// Text that is nearly a table is read or refused in one way: never a crash.
TEST(ParseTable, SurvivesDamagedText) {
  const std::string whole = to_string(add_step(add_communication(make_table("dualpipe_v", {2, 4, 2}))));
  int refused = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string damaged = whole;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = "0F;(),\n\r \xff"[random() % 10];
    try {
      const Table table = parse_table(damaged);
      EXPECT_EQ(parse_table(to_string(table)).actions_by_rank, table.actions_by_rank) << "seed " << seed;
    } catch (const InvalidArgument&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 2000);
}

}  // namespace
}  // namespace lockstep::schedule
