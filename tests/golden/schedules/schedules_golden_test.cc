// Every case of schedules.json, and every table that PyTorch made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "golden.h"
#include "lockstep/schedule/clock_cycles.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/schedule/validate.h"

namespace lockstep::golden {
namespace {

using schedule::Shape;
using schedule::Table;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<std::string> messages(const Table& table, const schedule::Rules& rules = {}) {
  std::vector<std::string> result;
  for (const Problem& problem : schedule::validate(table, rules)) result.push_back(problem.message());
  return result;
}

MATCHER_P(Near, expected, "") {
  return is_near(arg, expected);
}

MATCHER_P(AllNear, expected, "") {
  if (arg.size() != expected.size()) return false;
  for (size_t i = 0; i < arg.size(); ++i) {
    if (!is_near(arg[i], expected[i])) return false;
  }
  return true;
}

Shape shape_of(const json& inputs) {
  return {.ranks = inputs.at("K"), .microbatches = inputs.at("M"), .chunks = inputs.at("v")};
}

std::map<std::string, std::pair<double, double>> times_of(const simulate::Simulation& simulation) {
  std::map<std::string, std::pair<double, double>> times;
  for (const auto& list : simulation.list_of_rank) {
    for (const int index : list) {
      const simulate::Span& span = simulation.spans[static_cast<size_t>(index)];
      times[to_string(span.action)] = {span.begin, span.end};
    }
  }
  return times;
}

void expect_simulated(const simulate::Simulation& simulation, const json& expected) {
  EXPECT_THAT(simulation.makespan, Near(expected.at("makespan").get<double>()));
  EXPECT_THAT(simulation.busy, AllNear(expected.at("busy").get<std::vector<double>>()));
  const simulate::Bubbles bubbles = simulate::bubbles(simulation);
  EXPECT_THAT(bubbles.of_total, Near(expected.at("bubble_of_total").get<double>()));
  if (expected.contains("bubble_of_ideal")) {
    EXPECT_THAT(bubbles.of_ideal, Near(expected.at("bubble_of_ideal").get<double>()));
    EXPECT_THAT(bubbles.of_span, Near(expected.at("bubble_of_span").get<double>()));
  }
  if (expected.contains("utilisation")) {
    EXPECT_THAT(1 - bubbles.of_total, Near(expected.at("utilisation").get<double>()));
  }
  if (expected.contains("speedup")) {
    EXPECT_THAT(simulation.ranks * (1 - bubbles.of_total), Near(expected.at("speedup").get<double>()));
  }
}

void expect_in_flight(const Table& table, const json& expected) {
  EXPECT_THAT(schedule::in_flight_peak(table), AllNear(expected.at("peak").get<std::vector<double>>()));
  if (expected.contains("peak_release_I")) {
    EXPECT_THAT(schedule::in_flight_peak(table, {.until = schedule::Lifetime::Until::input_grad}),
                AllNear(expected.at("peak_release_I").get<std::vector<double>>()));
  }
}

TEST(Schedules, HaveTheRecordedOrdersTimesAndMemory) {
  for (const json& one : schedules().at("cases")) {
    SCOPED_TRACE(one.at("id").get<std::string>());
    const json &inputs = one.at("inputs"), &expected = one.at("expected");
    const Table table = schedule::make_table(inputs.at("schedule").get<std::string>(), shape_of(inputs));
    EXPECT_THAT(messages(table), IsEmpty());
    if (expected.contains("order")) EXPECT_EQ(order(table), expected.at("order").get<std::vector<std::string>>());
    const simulate::Simulation simulation = simulate::simulate(table, costs(inputs, table.stages()));
    expect_simulated(simulation, expected);
    expect_in_flight(table, expected);
    if (!expected.contains("timeline")) continue;
    const auto times = times_of(simulation);
    EXPECT_EQ(times.size(), expected.at("timeline").size());
    for (const auto& [action, span] : expected.at("timeline").items()) {
      EXPECT_THAT(times.at(action).first, Near(span.at(0).get<double>())) << action;
      EXPECT_THAT(times.at(action).second, Near(span.at(1).get<double>())) << action;
    }
  }
}

// What the documents and papers print, to the decimals they print.
TEST(Schedules, RoundToTheFiguresThatAreStated) {
  for (const json& one : schedules().at("cases")) {
    if (!one.at("expected").contains("stated")) continue;
    SCOPED_TRACE(one.at("id").get<std::string>());
    const json& inputs = one.at("inputs");
    const Table table = schedule::make_table(inputs.at("schedule").get<std::string>(), shape_of(inputs));
    const auto simulation = simulate::simulate(table, costs(inputs, table.stages()));
    const simulate::Bubbles bubbles = simulate::bubbles(simulation);
    const std::map<std::string, double> ours{{"makespan", simulation.makespan},
                                             {"bubble_of_total", bubbles.of_total},
                                             {"bubble_of_ideal", bubbles.of_ideal},
                                             {"utilisation", 1 - bubbles.of_total},
                                             {"speedup", simulation.ranks * (1 - bubbles.of_total)}};
    for (const auto& [what, stated] : one.at("expected").at("stated").items()) {
      if (!stated.is_object()) continue;
      const double half_of_last = 0.5 * std::pow(10, -stated.at("decimals").get<int>());
      EXPECT_NEAR(ours.at(what), stated.at("value").get<double>(), half_of_last * (1 + 1e-9)) << what;
    }
  }
}

TEST(Schedules, InterleavingHalvesTheBubbleAndHoldsMore) {
  const json& all = schedules().at("cases");
  const auto one = std::ranges::find_if(all, [](const json& c) { return c.at("id") == "interleaved_K4_M8_v2"; });
  const json& stated = one->at("expected").at("stated");
  const auto bubble_time = [](const Table& table, double forward) {
    const auto simulation = simulate::simulate(
        table, {.duration = simulate::per_stage({.forward = {forward}, .backward = {2 * forward}}, table.stages())});
    return simulation.makespan - simulate::bubbles(simulation).ideal;
  };
  const Table table = schedule::make_table("interleaved", {4, 8, 2});
  EXPECT_EQ(std::ranges::max(schedule::in_flight_peak(table)), stated.at("peak_worst_rank"));
  EXPECT_THAT(bubble_time(table, 0.5) / bubble_time(schedule::make_table("1f1b", {4, 8}), 1),
              Near(stated.at("bubble_time_relative_to_1f1b").get<double>()));
}

TEST(ClosedForms, HoldForEveryRow) {
  const auto unit = [](const Table& table, double forward, double input, double weight) {
    return simulate::simulate(
        table,
        {.duration = simulate::per_stage(
             {.forward = {forward}, .backward = {input + weight}, .input_grad = {input}, .weight_grad = {weight}},
             table.stages())});
  };
  for (const json& form : schedules().at("closed_forms")) {
    const std::string id = form.at("id");
    for (const json& row : form.at("rows")) {
      SCOPED_TRACE(id + " " + row.dump());
      const int ranks = row.at(0), microbatches = row.at(1);
      if (id == "bubble_gpipe_1f1b") {
        for (const char* kind : {"gpipe", "1f1b"}) {
          const auto simulation = unit(schedule::make_table(kind, {ranks, microbatches}), 1, 1, 1);
          EXPECT_THAT(simulate::bubbles(simulation).of_total, Near(row.at(2).get<double>()));
        }
      } else if (id == "interleaved") {
        const Table table = schedule::make_table("interleaved", {ranks, microbatches, row.at(2)});
        EXPECT_THAT(simulate::bubbles(unit(table, 1, 1, 1)).of_ideal, Near(row.at(3).get<double>()));
        EXPECT_THAT(schedule::in_flight_peak(table).front(), Near(row.at(4).get<double>()));
      } else {
        ASSERT_EQ(id, "zb_h1");
        const Table table = schedule::make_table("zb_h1", {ranks, microbatches});
        const auto simulation = unit(table, row.at(2), row.at(3), row.at(4));
        EXPECT_THAT(simulation.makespan - simulate::bubbles(simulation).ideal, Near(row.at(5).get<double>()));
        EXPECT_THAT(schedule::in_flight_peak(table), Each(Near(row.at(6).get<double>())));
      }
    }
  }
}

TEST(ClockCycles, AreThoseOfTheDocuments) {
  for (const json& one : schedules().at("clock_cycles").at("values")) {
    std::vector<std::vector<std::pair<int, int>>> waves;
    for (const schedule::Wave& wave : schedule::clock_cycles(one.at("microbatches"), one.at("stages"))) {
      auto& pairs = waves.emplace_back();
      for (const schedule::Cell& cell : wave) pairs.emplace_back(cell.microbatch, cell.stage);
    }
    EXPECT_EQ(json(waves), one.at("waves")) << one;
  }
}

TEST(BrokenTables, AreRefusedAndDeadlocksStandWhereRecorded) {
  for (const json& one : schedules().at("negatives").at("values")) {
    SCOPED_TRACE(one.at("id").get<std::string>());
    const Table table = table_of_order(one.at("order"));
    EXPECT_THAT(messages(table), Not(IsEmpty()));
    if (one.at("expected") != "deadlock") continue;
    std::map<std::string, std::string> stuck;
    for (const schedule::Stuck& at : schedule::find_stuck(table)) stuck[text(at.rank)] = to_string(at.action);
    EXPECT_EQ(json(stuck), one.at("stuck_at"));
    EXPECT_THROW(simulate::simulate(table, {.duration = [](const auto&) { return 1.0; }}), InvalidArgument);
  }
}

schedule::Placement placement_of(const json& table) {
  return table.at("placement") == "v" ? schedule::Placement::v : schedule::Placement::loop;
}

TEST(PyTorchOrders, AreReadValidatedAndSimulatedToTheRecordedValues) {
  const json& tables = schedules().at("pytorch_orders").at("tables");
  ASSERT_THAT(tables, SizeIs(40));
  for (const json& one : tables) {
    SCOPED_TRACE(one.at("file").get<std::string>());
    const Table table = schedule::parse_table(read(one.at("file")));
    EXPECT_EQ(table.ranks, one.at("K"));
    EXPECT_EQ(table.microbatches, one.at("M"));
    EXPECT_EQ(table.rank_of_stage, schedule::place_stages(placement_of(one), one.at("K"), one.at("v")));
    EXPECT_THAT(messages(table), IsEmpty());
    size_t actions = 0;
    for (const auto& list : table.actions_by_rank) actions += list.size();
    EXPECT_EQ(actions, one.at("actions"));
    expect_in_flight(table, one);
    for (const json& run : one.at("runs")) {
      SCOPED_TRACE(run.dump());
      expect_simulated(simulate::simulate(table, costs(run, table.stages())), run);
    }
    EXPECT_EQ(schedule::parse_table(to_string(table)), table) << "writing and reading gives the same";
  }
}

std::string without_idle_slots(const std::string& csv) {
  return to_string(schedule::parse_table(csv));
}

// Our generators against PyTorch's, for the kinds that both have.
TEST(PyTorchOrders, AreThoseThatOurGeneratorsMake) {
  const std::map<std::string, std::string> kinds{{"gpipe", "gpipe"},
                                                 {"1f1b", "1f1b"},
                                                 {"interleaved1f1b", "interleaved"},
                                                 {"loopedbfs", "looped_bfs"},
                                                 {"interleavedzerobubble", "interleaved_zb"},
                                                 {"zbv", "zb_v"},
                                                 {"dualpipev", "dualpipe_v"}};
  for (const json& one : schedules().at("pytorch_orders").at("tables")) {
    const std::string file = one.at("file"), name = std::filesystem::path(file).filename();
    SCOPED_TRACE(file);
    Shape shape = shape_of(one);
    const std::string kind = kinds.at(name.substr(0, name.find("_K")));
    if (kind == "gpipe") shape.backward_order = schedule::BackwardOrder::rising;
    EXPECT_EQ(to_string(schedule::make_table(kind, shape)), without_idle_slots(read(file)));
  }
}

TEST(PyTorchOrders, TheInvalidOnesAreRefusedWithTheReason) {
  const json& invalid = schedules().at("pytorch_orders").at("invalid");
  ASSERT_THAT(invalid, SizeIs(6));
  for (const json& one : invalid) {
    SCOPED_TRACE(one.at("file").get<std::string>());
    const Table table = schedule::parse_table(read(one.at("file")));
    const int last = table.ranks - 1, microbatches = table.microbatches;
    EXPECT_THAT(messages(table),
                ::testing::ElementsAre(text("rank ", last, " = ", last, "F", microbatches,
                                            ": micro-batches are numbered from 0 to ", microbatches - 1)));
  }
}

}  // namespace
}  // namespace lockstep::golden
