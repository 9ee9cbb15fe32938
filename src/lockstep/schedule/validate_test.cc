#include "lockstep/schedule/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/passes.h"

namespace lockstep::schedule {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> messages(const Table& table, const Rules& rules = {.whole_step = true}) {
  std::vector<std::string> result;
  for (const Problem& problem : validate(table, rules)) result.push_back(problem.message());
  return result;
}

std::vector<std::string> messages(const char* csv, const Rules& rules = {}) {
  return messages(parse_table(csv), rules);
}

std::vector<Action>& actions(Table& table, size_t rank = 0) {
  return table.actions_by_rank[rank];
}

TEST(Accumulation, RunsMicrobatchesInTurnThenReducesAndSteps) {
  EXPECT_EQ(to_string(accumulation({.microbatches = 2})), "0F0,0B0,0F1,0B1,0REDUCE_GRAD,STEP\n");
}

TEST(Validate, AcceptsSplitBackwardsAndRecomputation) {
  using enum Action::Kind;
  Table table = accumulation({.microbatches = 2});
  actions(table) = {{forward, 0, 0},  {forward, 0, 1},     {recompute, 0, 1},    {input_grad, 0, 1},
                    {backward, 0, 0}, {weight_grad, 0, 1}, {reduce_gradient, 0}, {optimizer_step}};
  EXPECT_THAT(messages(table), IsEmpty());
}

TEST(Validate, NamesBothActionsThatStandInTheWrongOrder) {
  Table table = accumulation({.microbatches = 1});
  std::swap(actions(table)[0], actions(table)[1]);
  EXPECT_THAT(messages(table), ElementsAre("rank 0 = 0B0: stands before 0F0"));
  table = accumulation({.microbatches = 1});
  std::swap(actions(table)[2], actions(table)[3]);
  EXPECT_THAT(messages(table), ElementsAre("rank 0 = STEP: stands before 0REDUCE_GRAD"));
  std::swap(actions(table)[1], actions(table)[3]);
  EXPECT_THAT(messages(table), Contains("rank 0 = 0REDUCE_GRAD: stands before 0B0"));
}

TEST(Validate, AWholeAndASplitBackwardOfOneMicrobatchIsOneTooMany) {
  EXPECT_THAT(messages("0F0,0I0,0W0,0B0"), ElementsAre("rank 0 = 0B0: is done already by 0I0"));
}

TEST(Validate, EveryRemovedOrRepeatedActionIsNamed) {
  const Table whole = accumulation({.microbatches = 3});
  for (size_t i = 0; i < whole.actions_by_rank[0].size(); ++i) {
    const std::string word = to_string(whole.actions_by_rank[0][i]);
    Table table = whole;
    actions(table).erase(actions(table).begin() + static_cast<int64_t>(i));
    EXPECT_THAT(messages(table), ElementsAre(HasSubstr("rank 0 = " + word + ": is missing")));
    table = whole;
    actions(table).push_back(whole.actions_by_rank[0][i]);
    EXPECT_THAT(messages(table), ElementsAre("rank 0 = " + word + ": stands twice in the list"));
  }
}

// Against the definition, said another way: forward before backward, all backwards before the reduction, the step last.
TEST(Validate, AgreesWithTheDefinitionOnRandomOrders) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    Table table = accumulation({.microbatches = 1 + static_cast<int>(seed % 2)});
    std::ranges::shuffle(actions(table), random);
    const std::string line = "," + to_string(table);
    const auto at = [&](const char* word) { return line.find(word); };
    bool valid = at(",0F0") < at(",0B0") && at(",0B0") < at(",0REDUCE") && at(",0REDUCE") < at(",STEP");
    if (table.microbatches == 2) valid = valid && at(",0F1") < at(",0B1") && at(",0B1") < at(",0REDUCE");
    EXPECT_EQ(messages(table).empty(), valid) << "seed " << seed << ": " << line;
  }
}

TEST(Validate, RefusesNumbersOutOfRange) {
  using enum Action::Kind;
  for (const auto& [action, message] : std::vector<std::pair<Action, std::string>>{
           {{forward, 0, 2}, "rank 0 = 0F2: micro-batches are numbered from 0 to 1"},
           {{forward, 0, -1}, "rank 0 = 0F: micro-batches are numbered from 0 to 1"},
           {{forward, 1, 0}, "rank 0 = 1F0: stages are numbered from 0 to 0"},
           {{reduce_gradient, 0, 1}, "rank 0 = 0REDUCE_GRAD1: reduce_gradient belongs to no micro-batch"},
           {{optimizer_step, 0}, "rank 0 = 0STEP: the step is the rank's and has no stage"},
           {{send_activation, 0, 0}, "rank 0 = 0SEND_F0: there is no stage at the other end"},
           {{forward, 0, 0, true}, "rank 0 = 0F0: is to overlap 0F0; only a forward can, with a backward after it"}}) {
    Table table = accumulation({.microbatches = 2});
    actions(table).insert(actions(table).begin(), action);
    EXPECT_THAT(messages(table), Contains(message));
  }
}

TEST(Validate, RefusesTablesWithoutForm) {
  Table table = accumulation({.microbatches = 1});
  table.rank_of_stage = {0, 1};
  EXPECT_THAT(messages(table), ElementsAre("stage 1 = rank 1: every stage up to 1 must be on one of the ranks 0 to 0"));
  table.rank_of_stage = {};
  EXPECT_THAT(messages(table), ElementsAre("stages = 0: must be at least 1 (nearest: 1)"));
  table.actions_by_rank.clear();
  EXPECT_THAT(messages(table),
              ElementsAre("ranks = 1: there are 0 lists of actions; there must be one per rank (nearest: 1)"));
  EXPECT_THAT(messages("0F0,0B0,2F0,2B0"), ElementsAre(HasSubstr("stage 1 = no rank")));
}

TEST(Validate, NamesBothActionsOfEveryKindOfBreakage) {
  EXPECT_THAT(messages("0F0,0B0,1F1,1B1\n1F0,1B0,0F1,0B1"),
              Contains("rank 1 = 1F0: stage 1 is on rank 0, where 1F1 stands"));
  EXPECT_THAT(messages("0F0,0B0\n1B0,1F0"), ElementsAre("rank 1 = 1B0: stands before 1F0"));
  EXPECT_THAT(messages("0F0,0I0,0W0\n1F0,1I0"), ElementsAre("rank 1 = 1W0: is missing; 1I0 needs it"));
  EXPECT_THAT(messages("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"),
              ElementsAre("rank 0 = 0RECV_B0: is missing; 1SEND_B0 needs it"));
  EXPECT_THAT(messages("0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0"),
              ElementsAre("rank 0 = 0B0: stands before 0RECV_B0"));
  EXPECT_THAT(messages("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0"),
              ElementsAre("rank 0 = 0B0: waits for ever for 1B0, as rank 1 stands at 1F1",
                          "rank 1 = 1F1: waits for ever for 0F1, as rank 0 stands at 0B0"));
  EXPECT_THAT(messages("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
                       "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1"),
              ElementsAre("rank 1 = 1RECV_F1: would get message 0 from rank 0, which is 0SEND_F0"));
  EXPECT_THAT(messages("0UNSHARD,0F0,0RESHARD,0B0"), ElementsAre("rank 0 = 0B0: needs 0UNSHARD before it"));
  EXPECT_THAT(messages("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD"),
              ElementsAre("rank 0 = 0UNSHARD: stands again before 0RESHARD"));
  EXPECT_THAT(messages("0UNSHARD,0F0,0B0"), ElementsAre("rank 0 = 0UNSHARD: is never followed by 0RESHARD"));
  EXPECT_THAT(messages("0F0,0B0,0RESHARD"), ElementsAre("rank 0 = 0RESHARD: needs 0UNSHARD before it"));
}

TEST(Validate, HoldsAMemoryBound) {
  EXPECT_THAT(messages("0F0,0F1,0F2,0B0,0B1,0B2", {.in_flight_bound = {3}}), IsEmpty());
  EXPECT_THAT(messages("0F0,0F1,0F2,0B0,0B1,0B2", {.in_flight_bound = {2}}),
              ElementsAre("rank 0 = 0F2: makes 3 micro-batches in flight, above 2; 0F0 is still alive"));
  EXPECT_THAT(messages("0F0,1F0,1B0,0B0", {.in_flight_bound = {0.5}}),
              ElementsAre("rank 0 = 1F0: makes 1 micro-batches in flight, above 0.5; 0F0 is still alive"));
}

// Two ranks that both send first, to each other: fine when sends are posted, stuck when they wait.
TEST(Validate, BlockingSendsOnBothSidesDeadlock) {
  const char* both_send_first =
      "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_THAT(messages(both_send_first, {.sends = Sends::blocking}), IsEmpty());
  const char* crossed =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_THAT(messages(crossed), IsEmpty());
  EXPECT_THAT(
      messages(crossed, {.sends = Sends::blocking}),
      ElementsAre("rank 0 = 0SEND_F1: waits for ever for 1RECV_F1, as rank 1 stands at 1SEND_B0 (blocking sends)",
                  "rank 1 = 1SEND_B0: waits for ever for 0RECV_B0, as rank 0 stands at 0SEND_F1 (blocking sends)"));
}

}  // namespace
}  // namespace lockstep::schedule
