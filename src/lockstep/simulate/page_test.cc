// The timelines of docs/schedules.md are what draw() makes. LOCKSTEP_BLESS=1 rewrites them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <set>

#include "lockstep/base/drawn_page.h"
#include "lockstep/base/text.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/simulate/analysis.h"
#include "lockstep/simulate/draw.h"

namespace lockstep::simulate {
namespace {

std::filesystem::path page() {
  return std::filesystem::path(__FILE__).parent_path() / "../../../docs/schedules.md";
}

struct Wanted {
  std::string kind;
  schedule::Shape shape;
  double transfer = 0, cell = 0;
  TransferMode mode = TransferMode::async;
  bool recompute = false;
};

// "interleaved 4 8 chunks 2 cell 0.5 transfer 0.5 link recompute rising"
Wanted parse(const std::string& words) {
  std::istringstream stream(words);
  Wanted wanted;
  std::string word;
  stream >> wanted.kind >> wanted.shape.ranks >> wanted.shape.microbatches;
  while (stream >> word) {
    if (word == "chunks") stream >> wanted.shape.chunks;
    if (word == "cell") stream >> wanted.cell;
    if (word == "transfer") stream >> wanted.transfer;
    if (word == "link") wanted.mode = TransferMode::link;
    if (word == "block") wanted.mode = TransferMode::block;
    if (word == "recompute") wanted.recompute = true;
    if (word == "rising") wanted.shape.backward_order = schedule::BackwardOrder::rising;
  }
  return wanted;
}

std::string drawing(const Wanted& wanted) {
  schedule::Table table = schedule::make_table(wanted.kind, wanted.shape);
  if (wanted.recompute) table = schedule::add_recompute(table);
  const double forward = 1.0 / wanted.shape.chunks;
  const auto duration = per_stage({.forward = {forward},
                                   .backward = {2 * forward},
                                   .input_grad = {forward},
                                   .weight_grad = {forward},
                                   .recompute = {forward}},
                                  table.stages());
  const Simulation simulation = simulate(table, {duration, wanted.transfer, wanted.mode});
  const Bubbles found = bubbles(simulation);
  const auto percent = [](double share) {
    return text(std::fixed, std::setprecision(1), std::max(0.0, 100 * share), " %");
  };
  return text(draw(simulation, {.cell = wanted.cell}), "makespan ", simulation.makespan, ", bubble ",
              percent(found.of_total), " of the total, ", percent(found.of_ideal), " of the ideal, ",
              percent(found.of_span), " of the span; in flight ", join(schedule::in_flight_peak(table), " "), "\n");
}

TEST(Page, ShowsWhatTheSchedulesDo) {
  const std::string before = read_page(page());
  std::set<std::string> drawn;
  const std::string after = redrawn(before, [&](const std::string& words) {
    const Wanted wanted = parse(words);
    drawn.insert(wanted.kind);
    return drawing(wanted);
  });
  for (const schedule::Generator& generator : schedule::generators()) {
    EXPECT_EQ(drawn.count(std::string(generator.name)), 1U) << generator.name << " has no picture";
  }
  if (std::getenv("LOCKSTEP_BLESS") != nullptr) {
    std::ofstream(page()) << after;
  } else {
    EXPECT_EQ(before, after) << "LOCKSTEP_BLESS=1 rewrites the page";
  }
}

}  // namespace
}  // namespace lockstep::simulate
