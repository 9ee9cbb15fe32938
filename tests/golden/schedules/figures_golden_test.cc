// The documents' figures on pipelines, and their drawings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden.h"
#include "lockstep/cost/microbatches.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/simulate/draw.h"

namespace lockstep::golden {
namespace {

using schedule::Table;

simulate::Simulation run(const Table& table) {
  const double forward = static_cast<double>(table.ranks) / table.stages();
  return simulate::simulate(
      table, {.duration = simulate::per_stage({.forward = {forward}, .backward = {2 * forward}}, table.stages())});
}

json figures() {
  const json document = json::parse(read("figures.json"));
  json result;
  for (const json& figure : document.at("figures")) result[figure.at("id")] = figure;
  return result;
}

void expect_near(const json& figure, double value) {
  const double expected = figure.at("expected");
  EXPECT_NEAR(value, expected, figure.value("relative_tolerance", 1e-12) * expected) << figure.at("id");
}

TEST(Figures, EfficiencyAndBubbles) {
  size_t checked = 0;
  const json all = figures();
  for (const auto& [id, figure] : all.items()) {
    const json& inputs = figure.at("inputs");
    if (!inputs.contains("stages") || !inputs.contains("microbatches") || inputs.contains("alpha_ms")) continue;
    ++checked;
    const int ranks = inputs.at("stages"), microbatches = inputs.at("microbatches");
    const auto gpipe = simulate::bubbles(run(schedule::make_table("gpipe", {ranks, microbatches})));
    if (id.starts_with("pipeline.efficiency.")) {
      expect_near(figure, 1 - gpipe.of_total);
    } else if (id.starts_with("pipeline.bubble.")) {
      expect_near(figure, gpipe.of_total);
    } else if (id.starts_with("pipeline.interleaved.")) {
      const Table table = schedule::make_table("interleaved", {ranks, microbatches, inputs.value("chunks", 1)});
      expect_near(figure, simulate::bubbles(run(table)).of_ideal);
    } else {
      ASSERT_TRUE(id.starts_with("pipeline.forward_only_bubble.")) << id;
      ASSERT_EQ(inputs.at("backward_ms").get<double>(), 2 * inputs.at("forward_ms").get<double>());
      expect_near(figure, gpipe.of_forward_fill);
    }
  }
  EXPECT_EQ(checked, 13U);
}

// The smallest M for which a bubble is small enough.
template <class Bubble>
int smallest(Bubble is_small) {
  for (int microbatches = 1;; ++microbatches) {
    if (is_small(microbatches)) return microbatches;
  }
}

TEST(Figures, MicrobatchesForASmallBubble) {
  const json all = figures();
  EXPECT_EQ(all.at("pipeline.microbatches_for_bubble.K8").at("expected"), smallest([](int microbatches) {
              return simulate::bubbles(run(schedule::make_table("gpipe", {8, microbatches}))).of_total < 0.1 - 1e-12;
            }));
  for (const int ranks : {4, 8}) {
    EXPECT_EQ(all.at(text("pipeline.forward_only_bubble_5_percent.S", ranks)).at("expected"),
              smallest([&](int microbatches) {
                return simulate::bubbles(run(schedule::make_table("gpipe", {ranks, microbatches}))).of_forward_fill <=
                       0.05 + 1e-12;
              }));
  }
  const json& rule = all.at("pipeline.bubble_rule");
  for (size_t i = 0; i < 4; ++i) {
    const int ranks = rule.at("inputs").at("stages").at(i);
    const auto bubble = [&](int microbatches) {
      return simulate::bubbles(run(schedule::make_table("gpipe", {ranks, microbatches}))).of_total;
    };
    EXPECT_NEAR(bubble(4 * ranks), rule.at("expected").at("bubble_at_4K").at(i).get<double>(), 1e-12);
    EXPECT_NEAR(bubble(19 * (ranks - 1)), 0.05, 1e-12) << "below 5 % needs more than 19 (K-1)";
  }
}

TEST(Figures, InFlightOf1F1B) {
  const json expected = figures().at("pipeline.1f1b.in_flight.K6").at("expected");
  for (const int microbatches : {6, 12, 50}) {
    const auto peak = schedule::in_flight_peak(schedule::make_table("1f1b", {6, microbatches}));
    EXPECT_EQ(json({peak.front(), peak.back()}), expected);
  }
}

TEST(Figures, TheBestNumberOfMicrobatches) {
  const json all = figures();
  const cost::MicrobatchCost cost{.stages = 4, .rows = 1024, .alpha_s = 0.2e-3, .beta_s_per_row = 0.01e-3};
  const auto step_ms = [&](int microbatches) { return pipeline_step_s(cost, microbatches) * 1e3; };
  expect_near(all.at("pipeline.best_microbatches"), best_microbatches_estimate(cost));
  for (const int microbatches : {4, 16, 64}) {
    expect_near(all.at(text("pipeline.step_time.M", microbatches)), step_ms(microbatches));
  }
  const json& optimum = schedules().at("optimal_microbatches").at("expected");
  EXPECT_EQ(best_microbatches(cost).microbatches, optimum.at("best_integer_M"));
  EXPECT_NEAR(best_microbatches_estimate(cost), optimum.at("stated").get<double>(), 0.05);
  for (const json& step : optimum.at("steps")) {
    const int microbatches = step.at("M");
    const double forward = step.at("t_f_ms"), backward = step.at("t_b_ms");
    EXPECT_NEAR(step_ms(microbatches), step.at("stated_ms").get<double>(), 0.05 + 1e-9);
    const Table table = schedule::make_table("gpipe", {4, microbatches});
    const auto simulation =
        simulate::simulate(table, {.duration = simulate::per_stage({.forward = {forward}, .backward = {backward}}, 4)});
    EXPECT_NEAR(simulation.makespan, step.at("step_ms").get<double>(), 1e-9 * 60);
    EXPECT_NEAR(simulation.makespan, step_ms(microbatches), 1e-9 * 60) << "the formula is the simulator's makespan";
  }
}

TEST(Drawings, AreTheDocumentsCharacterForCharacter) {
  const auto draw = [](const char* kind, int microbatches, double cell) {
    const auto simulation = run(schedule::make_table(kind, {4, microbatches}));
    return text(kind, "\n", simulate::draw(simulation, {.cell = cell, .label = "设备 "}));
  };
  EXPECT_EQ(draw("naive", 1, 0.5) + "\n" + draw("gpipe", 8, 1) + "\n" + draw("1f1b", 8, 1), read("drawings.txt"));
}

}  // namespace
}  // namespace lockstep::golden
