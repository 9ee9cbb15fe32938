#include "lockstep/schedule/last_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/schedule/generators.h"

namespace lockstep::schedule {
namespace {

std::vector<std::string> last_of(const std::vector<Action>& actions) {
  const std::vector<bool> is_last = brings_last_gradients(actions);
  std::vector<std::string> result;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (is_last[i]) result.push_back(to_string(actions[i]));
  }
  return result;
}

std::vector<std::string> last_of(const std::string& list) {
  return last_of(parse_table(list).actions_by_rank.front());
}

TEST(LastGradients, AreTheLastHalvesOfEachStage) {
  using testing::ElementsAre;
  EXPECT_THAT(last_of("0F0,0F1,0B0,0B1,STEP"), ElementsAre("0B1"));
  EXPECT_THAT(last_of("0F0,0F1,0I0,0I1,0W0,0W1"), ElementsAre("0I1", "0W1"));
  EXPECT_THAT(last_of("0F0,0F1,0I0,0W0,0B1"), ElementsAre("0B1"));
  EXPECT_THAT(last_of("0F0,0F1,0B0,0I1,0W1"), ElementsAre("0I1", "0W1"));
  // B completes the gradients of norms, but not those of linear layers.
  EXPECT_THAT(last_of("0F0,0F1,0I0,0B1,0W0"), ElementsAre("0W0"));
  EXPECT_THAT(last_of("0F0,1F0,1I0,1W0,0I0,0F1,1F1,1I1,0I1,0W0,0W1,1W1"), ElementsAre("1I1", "0I1", "0W1", "1W1"));
}

// In every kind: nothing comes after the last, and every stage has one.
TEST(LastGradients, OfEveryKind) {
  for (const Generator& generator : generators()) {
    const Shape shape{.ranks = 4, .microbatches = 8, .chunks = generator.usual_chunks};
    ASSERT_TRUE(generator.check(shape).empty()) << generator.name;
    const Table table = generator.make(shape);
    for (const auto& actions : table.actions_by_rank) {
      const std::vector<bool> is_last = brings_last_gradients(actions);
      for (int stage = 0; stage < table.stages(); ++stage) {
        std::vector<Action> of_stage;
        std::vector<bool> last_of_stage;
        for (size_t i = 0; i < actions.size(); ++i) {
          if (actions[i].stage != stage || actions[i].kind == Action::Kind::forward) continue;
          of_stage.push_back(actions[i]);
          last_of_stage.push_back(is_last[i]);
        }
        if (!of_stage.empty()) EXPECT_TRUE(last_of_stage.back()) << generator.name << " " << to_string(of_stage.back());
        for (size_t i = 0; i < of_stage.size(); ++i) {
          const auto later = std::span(of_stage).subspan(i + 1);
          const bool again = std::ranges::count(later, of_stage[i].kind, &Action::kind) > 0;
          if (last_of_stage[i]) EXPECT_FALSE(again) << generator.name << " " << to_string(of_stage[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::schedule
