#include "lockstep/schedule/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep::schedule {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> messages(const Table& table) {
  std::vector<std::string> result;
  for (const Problem& problem : validate(table)) result.push_back(problem.message());
  return result;
}

std::vector<Action>& actions(Table& table) {
  return table.actions_by_rank[0];
}

TEST(Accumulation, RunsMicrobatchesInTurnThenReducesAndSteps) {
  EXPECT_EQ(to_string(accumulation({.microbatches = 2})), "0F0,0B0,0F1,0B1,0REDUCE_GRAD,STEP\n");
}

TEST(Generators, MakeValidTablesOfEveryShapeTheyAccept) {
  for (const Generator& generator : generators()) {
    for (int microbatches = -1; microbatches <= 20; ++microbatches) {
      for (int ranks = 1; ranks <= 3; ++ranks) {
        const Shape shape{ranks, microbatches};
        if (!generator.check(shape).empty()) continue;
        EXPECT_THAT(messages(generator.make(shape)), IsEmpty())
            << generator.name << " " << ranks << " " << microbatches;
      }
    }
    EXPECT_THAT(generator.check({.ranks = 1, .microbatches = 4}), IsEmpty()) << generator.name;
    EXPECT_THAT(generator.check({.ranks = 1, .microbatches = 0}), Not(IsEmpty())) << generator.name;
  }
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
  using enum Action::Kind;
  Table table = accumulation({.microbatches = 1});
  actions(table) = {{forward, 0, 0},  {input_grad, 0, 0},   {weight_grad, 0, 0},
                    {backward, 0, 0}, {reduce_gradient, 0}, {optimizer_step}};
  EXPECT_THAT(messages(table), ElementsAre("rank 0 = 0B0: is done already by 0I0"));
}

TEST(Validate, EveryRemovedOrRepeatedActionIsNamed) {
  const Table whole = accumulation({.microbatches = 3});
  for (size_t i = 0; i < whole.actions_by_rank[0].size(); ++i) {
    const std::string word = to_string(whole.actions_by_rank[0][i]);
    Table table = whole;
    actions(table).erase(actions(table).begin() + static_cast<int64_t>(i));
    EXPECT_THAT(messages(table), ElementsAre("rank 0 = " + word + ": is missing"));
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
    EXPECT_EQ(validate(table).empty(), valid) << "seed " << seed << ": " << line;
  }
}

TEST(Validate, RefusesNumbersOutOfRange) {
  using enum Action::Kind;
  for (const auto& [action, message] : std::vector<std::pair<Action, std::string>>{
           {{forward, 0, 2}, "rank 0 = 0F2: micro-batches are numbered from 0 to 1"},
           {{forward, 0, -1}, "rank 0 = 0F: micro-batches are numbered from 0 to 1"},
           {{forward, 1, 0}, "rank 0 = 1F0: the only stage of the table is 0"},
           {{reduce_gradient, 0, 1}, "rank 0 = 0REDUCE_GRAD1: reduce_gradient belongs to no micro-batch"},
           {{optimizer_step, 0}, "rank 0 = 0STEP: the step is the rank's and has no stage"},
           {{send_activation, 0, 0}, "rank 0 = 0SEND_F0: send_activation is not supported by this version"}}) {
    Table table = accumulation({.microbatches = 2});
    actions(table).insert(actions(table).begin(), action);
    EXPECT_THAT(messages(table), ElementsAre(message));
  }
}

TEST(Validate, RefusesTablesOfSeveralStages) {
  Table table = accumulation({.microbatches = 1});
  table.rank_of_stage = {0, 0};
  EXPECT_THAT(messages(table), ElementsAre("stages = 2: tables of several stages are not supported by this version "
                                           "(nearest: 1)"));
  table.rank_of_stage = {0};
  table.actions_by_rank.clear();
  EXPECT_THAT(messages(table), Not(IsEmpty()));
}

}  // namespace
}  // namespace lockstep::schedule
