// What must hold for any kind, shape and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/schedule/validate.h"
#include "lockstep/simulate/analysis.h"

namespace lockstep::simulate {
namespace {

using schedule::Action;
using schedule::Table;
using Kind = Action::Kind;
using ::testing::IsEmpty;

constexpr int kCases = 2000;

// A random kind in a random shape that it takes, and random times of everything.
struct Case {
  const schedule::Generator* generator = nullptr;
  schedule::Shape shape;
  StageTimes times;
  double transfer = 0;
  TransferMode mode = TransferMode::async;
};

Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  Case result;
  do {
    result.generator =
        &schedule::generators()[static_cast<size_t>(below(static_cast<int>(schedule::generators().size())))];
    result.shape = {1 + below(6), 1 + below(16), 1 + below(3),
                    below(4) == 0 ? schedule::BackwardOrder::rising : schedule::BackwardOrder::falling};
  } while (!result.generator->check(result.shape).empty());
  const int stages = result.shape.ranks * result.shape.chunks;
  for (auto* list :
       {&result.times.forward, &result.times.backward, &result.times.input_grad, &result.times.weight_grad}) {
    for (int stage = 0; stage < stages; ++stage) list->push_back(1 + below(1000) * 0.01);
  }
  result.transfer = below(3) == 0 ? 0 : below(300) * 0.01;
  result.mode = static_cast<TransferMode>(below(3));
  return result;
}

Simulation run(const Case& one, const Table& table) {
  return simulate(table, {per_stage(one.times, table.stages()), one.transfer, one.mode});
}

double time_of(const StageTimes& times, Kind kind, int stage) {
  return per_stage(times, static_cast<int>(times.forward.size()))({kind, stage, 0});
}

// No order can be faster: a rank cannot begin before a micro-batch has come to the first of its stages, then has all
// its work, and if its last work is an input gradient, that must still go through the stages before.
double lower_bound(const Case& one, const Table& table) {
  bool split = false;
  for (const auto& actions : table.actions_by_rank) {
    split = split || std::ranges::count(actions, Kind::weight_grad, &Action::kind) > 0;
  }
  double bound = 0;
  for (int rank = 0; rank < table.ranks; ++rank) {
    const int first = static_cast<int>(std::ranges::find(table.rank_of_stage, rank) - table.rank_of_stage.begin());
    double head = 0, tail = 0, work = 0;
    for (int stage = 0; stage < first; ++stage) {
      head += time_of(one.times, Kind::forward, stage) + one.transfer;
      tail += time_of(one.times, Kind::backward, stage) + one.transfer;
    }
    for (const Action& action : table.actions_by_rank[static_cast<size_t>(rank)]) {
      work += time_of(one.times, action.kind, action.stage);
    }
    bound = std::max(bound, head + work + (split ? 0 : tail));
  }
  return bound;
}

// Every table is valid with and without its communication, holds its memory bound, and ends, whatever the channels.
void expect_valid(const Case& one, const Table& table) {
  schedule::Rules rules;
  for (int rank = 0; rank < table.ranks; ++rank) {
    rules.in_flight_bound.push_back(one.generator->in_flight_bound(one.shape, rank));
  }
  EXPECT_THAT(schedule::validate(table, rules), IsEmpty());
  const Table whole = schedule::add_communication(table);
  for (const schedule::Sends sends : {schedule::Sends::posted, schedule::Sends::blocking}) {
    rules.sends = sends;
    EXPECT_THAT(schedule::validate(whole, rules), IsEmpty());
  }
}

void expect_consistent(const Case& one, const Table& table, const Simulation& simulation) {
  const double tolerance = 1e-9 * simulation.makespan;
  EXPECT_GE(simulation.makespan, lower_bound(one, table) - tolerance);
  const Bubbles found = bubbles(simulation);
  const double largest = *std::ranges::max_element(simulation.busy);
  EXPECT_GE(found.of_total, 1 - found.ideal / largest - 1e-9) << "the busiest rank's work is a bound";
  EXPECT_LE(found.of_span, found.of_total + 1e-9);
  EXPECT_NEAR(found.of_ideal, found.of_total / (1 - found.of_total), 1e-9);

  double at = 0;
  for (const int index : critical_path(simulation)) {
    const Span& span = simulation.spans[static_cast<size_t>(index)];
    EXPECT_NEAR(span.begin, at, tolerance);
    at = span.end;
  }
  EXPECT_NEAR(at, simulation.makespan, tolerance);

  std::vector<double> idle(simulation.busy.size());
  for (const Gap& gap : gaps(simulation)) idle[static_cast<size_t>(gap.rank)] += gap.duration();
  for (size_t rank = 0; rank < idle.size(); ++rank) {
    double occupied = 0;
    for (const int index : simulation.list_of_rank[rank])
      occupied += simulation.spans[static_cast<size_t>(index)].duration();
    EXPECT_NEAR(occupied + idle[rank], simulation.makespan, tolerance);
  }
}

// Whatever gets slower, the whole gets no faster.
void expect_monotone(Case one, const Table& table, double makespan, unsigned seed) {
  std::mt19937 random(seed + 1'000'000);
  const size_t stage = random() % one.times.forward.size();
  for (auto* list : {&one.times.forward, &one.times.backward, &one.times.input_grad, &one.times.weight_grad}) {
    (*list)[stage] += 0.37;
    EXPECT_GE(run(one, table).makespan, makespan * (1 - 1e-12));
    (*list)[stage] -= 0.37;
  }
  one.transfer += 0.37;
  EXPECT_GE(run(one, table).makespan, makespan * (1 - 1e-12));
}

TEST(Properties, HoldForRandomSchedules) {
  for (unsigned seed = 0; seed < kCases && !HasFailure(); ++seed) {
    const Case one = random_case(seed);
    SCOPED_TRACE(text("seed ", seed, ": ", one.generator->name, " K=", one.shape.ranks, " M=", one.shape.microbatches,
                      " v=", one.shape.chunks, " ", name(one.mode)));
    const Table table = one.generator->make(one.shape);
    expect_valid(one, table);
    const Simulation simulation = run(one, table);
    expect_consistent(one, table, simulation);
    expect_monotone(one, table, simulation.makespan, seed);
  }
}

// Text that was a table: refused with a reason, or a table that runs to its end.
TEST(Properties, DamagedTablesAreRefusedOrRun) {
  const std::string whole =
      to_string(schedule::add_step(schedule::add_communication(schedule::make_table("1f1b", {2, 3}))));
  int refused = 0, run_through = 0;
  for (unsigned seed = 0; seed < kCases; ++seed) {
    std::mt19937 random(seed);
    std::string damaged = whole;
    for (size_t i = 0; i < 1 + seed % 3; ++i) damaged[random() % damaged.size()] = "0123,FBIW_S\n"[random() % 12];
    Table table;
    try {
      table = schedule::parse_table(damaged);
    } catch (const InvalidArgument&) {
      continue;
    }
    const auto problems = schedule::validate(table);
    if (!problems.empty()) {
      ++refused;
      continue;
    }
    ++run_through;
    EXPECT_GT(simulate(table, {.duration = [](const Action&) { return 1.0; }}).makespan, 0) << "seed " << seed;
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(run_through, 10);
}

}  // namespace
}  // namespace lockstep::simulate
