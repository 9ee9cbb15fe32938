#include "lockstep/simulate/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/table.h"

namespace lockstep::simulate {
namespace {

using ::testing::HasSubstr;

Simulation run(const schedule::Table& table, double forward = 1, double backward = 2) {
  return simulate(
      table, {.duration = per_stage({.forward = {forward}, .backward = {backward}}, table.stages()), .transfer = 0.5});
}

// The documents' drawings are in tests/golden.
TEST(Draw, NamesStagesWhereRanksHaveSeveral) {
  EXPECT_EQ(draw(run(schedule::parse_table("0F0,1F0,1B0,0B0"))), "rank 0 |0F01F01B01B00B00B0|\n");
}

TEST(Draw, AllCellsAreAsWideAsTheWidest) {
  const std::string line = draw(run(schedule::make_table("gpipe", {1, 11})), {.columns = 0});
  EXPECT_THAT(line, HasSubstr("|F0 F1 "));
  EXPECT_THAT(line, HasSubstr("F10B10B10B9 B9 "));
}

TEST(Draw, ACellShowsWhatIsInItsMiddle) {
  const Simulation simulation = run(schedule::parse_table("0F0,0B0\n1F0,1B0"), 1, 1);  // 0..1, 1.5..2.5, 2.5..3.5, 4..5
  EXPECT_EQ(draw(simulation, {.cell = 1}), "rank 0 |F0······B0|\nrank 1 |··F0B0····|\n");
  EXPECT_EQ(draw(simulation, {.cell = 0.5}), "rank 0 |F0F0············B0B0|\nrank 1 |······F0F0B0B0······|\n");
  EXPECT_EQ(draw(simulation, {.cell = 100}), "rank 0 |··|\nrank 1 |··|\n");
}

TEST(Draw, LongLinesGoOnBelow) {
  const Simulation simulation = run(schedule::make_table("1f1b", {2, 2}));
  EXPECT_EQ(draw(simulation, {.columns = 21}),
            "rank 0 |F0F1······B0|\nrank 1 |··F0B0B0F1B1|\n\nrank 0 |B0··B1B1|\nrank 1 |B1······|\n");
}

TEST(Draw, RefusesCellsThatAreNone) {
  const Simulation simulation = run(schedule::make_table("1f1b", {2, 2}));
  for (const double cell : {-1.0, 1e-9, std::nan(""), HUGE_VAL})
    EXPECT_THROW(draw(simulation, {.cell = cell}), InvalidArgument) << cell;
}

TEST(DrawSvg, HasABoxForEachActionAndALineForEachMessage) {
  const std::string svg = draw_svg(run(schedule::make_table("1f1b", {2, 2})));
  const auto count = [&](const std::string& what) {
    size_t found = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<rect"), 8U);
  EXPECT_EQ(count("<line"), 4U);
  EXPECT_THAT(svg, HasSubstr("<title>1B1: "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace lockstep::simulate
