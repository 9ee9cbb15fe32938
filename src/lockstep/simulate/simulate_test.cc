#include "lockstep/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/simulate/analysis.h"

namespace lockstep::simulate {
namespace {

using schedule::Action;
using schedule::Table;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Costs costs(double transfer = 0, TransferMode mode = TransferMode::async) {
  return {.duration =
              per_stage({.forward = {1}, .backward = {2}, .input_grad = {1}, .weight_grad = {1}, .recompute = {1}}, 0),
          .transfer = transfer,
          .mode = mode};
}

// "0F0 0..1": an action and its time.
std::vector<std::string> list(const Simulation& simulation, size_t rank) {
  std::vector<std::string> result;
  for (const int index : simulation.list_of_rank[rank]) {
    const Span& span = simulation.spans[static_cast<size_t>(index)];
    result.push_back(text(to_string(span.action), " ", span.begin, "..", span.end));
  }
  return result;
}

std::vector<std::string> words(const Simulation& simulation, const std::vector<int>& spans) {
  std::vector<std::string> result;
  for (const int index : spans) result.push_back(to_string(simulation.spans[static_cast<size_t>(index)].action));
  return result;
}

// Sends stand where their producers end, and a receive's place costs nothing: the same times with and without. Only the
// send of a forward that is paired with a backward stands after both.
TEST(Simulate, AddedCommunicationChangesNoTimeUnlessItBlocks) {
  for (const schedule::Generator& generator : schedule::generators()) {
    const schedule::Shape shape{4, 8, generator.check({4, 8, 1}).empty() ? 1 : 2};
    const Table table = generator.make(shape);
    for (const TransferMode mode : {TransferMode::async, TransferMode::link}) {
      const auto implied = simulate(table, costs(0.3, mode));
      const auto stated = simulate(schedule::add_communication(table), costs(0.3, mode));
      EXPECT_EQ(implied.messages.size(), stated.messages.size());
      if (generator.name == "dualpipe_v") {
        EXPECT_LT(implied.makespan, stated.makespan);
      } else {
        EXPECT_DOUBLE_EQ(implied.makespan, stated.makespan) << generator.name;
      }
    }
  }
}

TEST(Simulate, ABlockingTransferOccupiesBothRanks) {
  const Simulation simulation =
      simulate(schedule::parse_table("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"), costs(0.5, TransferMode::block));
  EXPECT_THAT(list(simulation, 0), ElementsAre("0F0 0..1", "0SEND_F0 1..1.5", "0F1 1.5..2.5", "0SEND_F1 2.5..3",
                                               "0RECV_B0 5..5.5", "0B0 5.5..7.5", "0RECV_B1 8.5..9", "0B1 9..11"));
  EXPECT_THAT(list(simulation, 1), ElementsAre("1RECV_F0 1..1.5", "1F0 1.5..2.5", "1RECV_F1 2.5..3", "1B0 3..5",
                                               "1SEND_B0 5..5.5", "1F1 5.5..6.5", "1B1 6.5..8.5", "1SEND_B1 8.5..9"));
  EXPECT_THAT(simulation.messages, IsEmpty());
  EXPECT_THAT(simulation.busy, ElementsAre(6, 6));
}

TEST(Simulate, RecomputationRunsWhileTheGradientIsOnItsWay) {
  const Table table = schedule::add_recompute(schedule::make_table("gpipe", {2, 1}));
  const Simulation simulation = simulate(table, costs());
  EXPECT_THAT(list(simulation, 0), ElementsAre("0F0 0..1", "0R0 1..2", "0B0 5..7"));
}

TEST(Simulate, UnshardingAndReductionsRunBesideComputing) {
  const Table table = schedule::add_sharding(schedule::add_step(schedule::make_table("looped_bfs", {1, 1, 2})), 2);
  Costs with_sharding = costs();
  const auto compute = with_sharding.duration;
  with_sharding.duration = [&](const Action& action) {
    if (action.kind == Action::Kind::unshard) return 2.0;
    if (action.kind == Action::Kind::reduce_gradient) return 4.0;
    if (action.kind == Action::Kind::optimizer_step) return 1.0;
    return compute(action);
  };
  const Simulation simulation = simulate(table, with_sharding);
  EXPECT_THAT(list(simulation, 0),
              ElementsAre("0UNSHARD 0..2", "1UNSHARD 2..4", "0F0 2..3", "1F0 4..5", "1B0 5..7", "1RESHARD 7..7",
                          "0B0 7..9", "1REDUCE_GRAD 5..9", "0REDUCE_GRAD 9..13", "0RESHARD 13..13", "STEP 13..14"));
  EXPECT_THAT(words(simulation, critical_path(simulation)),
              ElementsAre("0UNSHARD", "1UNSHARD", "1F0", "1REDUCE_GRAD", "0REDUCE_GRAD", "STEP"));
}

// Micro-batches of 3, 3 and 2 rows: a time is asked for each action, so they need not be equal.
TEST(Simulate, UnequalMicrobatches) {
  const std::vector<double> rows = {3, 3, 2};
  Costs by_rows;
  by_rows.duration = [&](const Action& action) {
    return rows[static_cast<size_t>(action.microbatch)] * (action.kind == Action::Kind::forward ? 1 : 2);
  };
  const Simulation simulation = simulate(schedule::make_table("1f1b", {2, 3}), by_rows);
  EXPECT_THAT(list(simulation, 1),
              ElementsAre("1F0 3..6", "1B0 6..12", "1F1 12..15", "1B1 15..21", "1F2 21..23", "1B2 23..27"));
  EXPECT_EQ(simulation.makespan, 31);
}

TEST(PerStage, TakesOneTimeOrOnePerStage) {
  const auto duration = per_stage({.forward = {1, 2, 3}, .backward = {5}}, 3);
  EXPECT_EQ(duration({Action::Kind::forward, 2, 0}), 3);
  EXPECT_EQ(duration({Action::Kind::backward, 2, 0}), 5);
  EXPECT_EQ(duration({Action::Kind::weight_grad, 2, 0}), 0);
  EXPECT_THROW(per_stage({.forward = {1, 2}}, 3), InvalidArgument);
  EXPECT_THROW(per_stage({.recompute = {-1}}, 3), InvalidArgument);
  EXPECT_THROW(per_stage({.input_grad = {INFINITY}}, 3), InvalidArgument);
}

TEST(CriticalPath, LeadsThroughTheMessagesThatHoldThingsUp) {
  const Simulation fast = simulate(schedule::make_table("1f1b", {2, 2}), costs());
  EXPECT_THAT(words(fast, critical_path(fast)), ElementsAre("0F0", "1F0", "1B0", "1F1", "1B1", "0B1"));
  const Simulation slow = simulate(schedule::make_table("1f1b", {2, 1}), costs(0.5));
  EXPECT_THAT(words(slow, critical_path(slow)), ElementsAre("0F0", "0SEND_F0", "1F0", "1B0", "1SEND_B0", "0B0"));
}

// On a busy channel a message waits for the one before it, not for its own producer.
TEST(CriticalPath, LeadsAlongABusyChannel) {
  const Simulation simulation = simulate(schedule::make_table("gpipe", {2, 3}), costs(3, TransferMode::link));
  EXPECT_THAT(
      words(simulation, critical_path(simulation)),
      ElementsAre("0F0", "0SEND_F0", "0SEND_F1", "0SEND_F2", "1F2", "1B2", "1SEND_B2", "1SEND_B1", "1SEND_B0", "0B0"));
}

TEST(Gaps, SayWhomARankWaitedFor) {
  const Simulation simulation = simulate(schedule::make_table("1f1b", {2, 2}), costs());
  std::vector<std::string> lines;
  for (const Gap& gap : gaps(simulation)) {
    const std::string awaited = gap.waited_for < 0 ? "" : words(simulation, {gap.waited_for}).front();
    lines.push_back(
        text(gap.rank, ": ", gap.begin, "..", gap.end, " ", rank_waited_for(simulation, gap), " ", awaited));
  }
  EXPECT_THAT(lines, ElementsAre("0: 2..4 1 1B0", "0: 6..7 1 1B1", "1: 0..1 0 0F0", "1: 7..9 -1 "));
}

TEST(Events, AreWhatARecorderWrites) {
  const Simulation simulation = simulate(schedule::make_table("gpipe", {2, 1}), costs(0.5));
  std::vector<std::string> lines;
  for (const trace::Event& event : events(simulation, 64)) {
    lines.push_back(text(event.rank, event.track == trace::Track::compute ? " compute " : " message ", event.name(),
                         " ", event.start_s, "+", event.duration_s, " ", event.stage, " ", event.microbatch, " ",
                         event.bytes));
  }
  EXPECT_THAT(lines, ElementsAre("0 compute forward 0+1 0 0 0", "0 compute backward 5+2 0 0 0",
                                 "1 compute forward 1.5+1 1 0 0", "1 compute backward 2.5+2 1 0 0",
                                 "0 message send_activation 1+0.5 0 0 64", "1 message send_gradient 4.5+0.5 1 0 64"));
}

TEST(Bubbles, DifferByDefinition) {
  const Bubbles of_1f1b = bubbles(simulate(schedule::make_table("1f1b", {4, 8}), costs()));
  EXPECT_DOUBLE_EQ(of_1f1b.ideal, 24);
  EXPECT_DOUBLE_EQ(of_1f1b.of_total, 3.0 / 11);
  EXPECT_DOUBLE_EQ(of_1f1b.of_ideal, 3.0 / 8);
  EXPECT_DOUBLE_EQ(of_1f1b.of_span, 3.0 / 11);
  EXPECT_NEAR(bubbles(simulate(schedule::make_table("zb_h2", {4, 8}), costs())).of_span, 0, 1e-12);
  EXPECT_DOUBLE_EQ(of_1f1b.of_forward_fill, 3.0 / 27);
}

}  // namespace
}  // namespace lockstep::simulate
