// Whole tables, each broken in one way at a random place: all are refused, and the action that was touched is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "lockstep/schedule/dependencies.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/schedule/validate.h"

namespace lockstep::schedule {
namespace {

using ::testing::IsEmpty;
using Kind = Action::Kind;

using Touched = std::vector<Action>;

class Breaker {
 public:
  explicit Breaker(unsigned seed) : random_(seed) {}

  Table whole_table() {
    for (;;) {
      const auto& generator = generators()[random_() % generators().size()];
      const Shape shape{2 + below(3), 1 + below(8), 1 + below(2)};
      if (!generator.check(shape).empty()) continue;
      return add_sharding(add_step(add_communication(add_recompute(generator.make(shape)))), 1 + below(3));
    }
  }

  // Each breaks the table and returns the actions of which a message must name one; none when this table has no such
  // place.
  Touched remove(Table& table) {
    auto& actions = any_list(table);
    const auto at = any_place(actions, [](const Action& a) { return a.kind != Kind::recompute; });
    const Action action = *at;
    if (at != actions.begin()) (at - 1)->overlaps_next = false;
    actions.erase(at);
    return {action};
  }

  Touched repeat(Table& table) {
    auto& actions = any_list(table);
    const Action action = *any_place(actions, [](const Action&) { return true; });
    const auto at = std::ranges::find(actions, action);
    actions.insert(at, {action.kind, action.stage, action.microbatch});
    return {action};
  }

  // Before something that it needs on its own rank.
  Touched move_forward(Table& table) {
    const Index index(table);
    auto& actions = any_list(table);
    const auto at = any_place(actions, [&](const Action& a) { return !needs_on_rank(a, index).empty(); });
    const Action action{at->kind, at->stage, at->microbatch};
    const auto needs = needs_on_rank(action, index);
    const Action need = needs[random_() % needs.size()];
    for (Action& other : actions) other.overlaps_next = false;
    actions.erase(at);
    actions.insert(std::ranges::find(actions, need), action);
    return {action};
  }

  Touched move_to_another_rank(Table& table) {
    const size_t rank = random_() % table.actions_by_rank.size();
    auto& actions = table.actions_by_rank[rank];
    const auto at = any_place(actions, [](const Action& a) { return a.kind != Kind::optimizer_step; });
    const Action action{at->kind, at->stage, at->microbatch};
    if (at != actions.begin()) (at - 1)->overlaps_next = false;
    actions.erase(at);
    table.actions_by_rank[(rank + 1) % table.actions_by_rank.size()].push_back(action);
    return {action};
  }

  Touched misnumber(Table& table) {
    auto& actions = any_list(table);
    const auto at = any_place(actions, [](const Action& a) { return is_per_microbatch(a.kind); });
    at->microbatch = table.microbatches;
    return {*at};
  }

  // Two receives from one rank in the other order.
  Touched swap_receives(Table& table) {
    auto& actions = any_list(table);
    const auto is_receive = [](const Action& a) {
      return a.kind == Kind::receive_activation || a.kind == Kind::receive_gradient;
    };
    if (std::ranges::none_of(actions, is_receive)) return {};
    const auto first = any_place(actions, is_receive);
    const auto second = std::find_if(first + 1, actions.end(), [&](const Action& a) {
      return is_receive(a) && peer_of(a, table) == peer_of(*first, table);
    });
    if (second == actions.end()) return {};
    std::swap(*first, *second);
    return {*first, *second};
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  std::vector<Action>& any_list(Table& table) {
    return table.actions_by_rank[random_() % table.actions_by_rank.size()];
  }

  template <class Condition>
  std::vector<Action>::iterator any_place(std::vector<Action>& actions, Condition condition) {
    for (;;) {
      const auto at = actions.begin() + static_cast<int64_t>(random_() % actions.size());
      if (condition(*at)) return at;
    }
  }

  std::mt19937 random_;
};

using Breakage = Touched (Breaker::*)(Table&);
struct Named {
  const char* name;
  Breakage breakage;
};

class Breakages : public ::testing::TestWithParam<Named> {};

TEST_P(Breakages, AreRefusedNamingTheAction) {
  int broken = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    Breaker breaker(seed);
    Table table = breaker.whole_table();
    ASSERT_THAT(validate(table, {.whole_step = true}), IsEmpty()) << to_string(table);
    const Touched touched = (breaker.*GetParam().breakage)(table);
    if (touched.empty()) continue;
    ++broken;
    std::string messages;
    for (const Problem& problem : validate(table, {.whole_step = true})) messages += problem.message() + "\n";
    const bool named = std::ranges::any_of(
        touched, [&](const Action& action) { return messages.find(to_string(action)) != std::string::npos; });
    EXPECT_TRUE(named) << "seed " << seed << ": " << messages << to_string(table);
  }
  EXPECT_GT(broken, 50);
}

INSTANTIATE_TEST_SUITE_P(One, Breakages,
                         ::testing::Values(Named{"Removed", &Breaker::remove}, Named{"Repeated", &Breaker::repeat},
                                           Named{"BeforeItsNeed", &Breaker::move_forward},
                                           Named{"OnAnotherRank", &Breaker::move_to_another_rank},
                                           Named{"Misnumbered", &Breaker::misnumber},
                                           Named{"ReceivedInAnotherOrder", &Breaker::swap_receives}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace lockstep::schedule
