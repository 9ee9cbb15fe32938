#include "lockstep/schedule/passes.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::schedule {

namespace {

using Kind = Action::Kind;
using Actions = std::vector<Action>;

// The table with every rank's list replaced by what `change` makes of it.
template <class Change>
Table with_lists(const Table& table, Change change) {
  Table result = table;
  for (Actions& actions : result.actions_by_rank) actions = change(actions);
  return result;
}

// Up to `count` different stages, in the order in which the list computes on them from `position` on.
std::vector<int> next_stages(const Actions& actions, size_t position, int count) {
  std::vector<int> stages;
  for (; position < actions.size() && static_cast<int>(stages.size()) < count; ++position) {
    const Action& action = actions[position];
    if (is_compute(action.kind) && !std::ranges::count(stages, action.stage)) stages.push_back(action.stage);
  }
  return stages;
}

}  // namespace

Table add_recompute(const Table& table) {
  return with_lists(table, [](const Actions& actions) {
    Actions result;
    for (const Action& action : actions) {
      if (makes_input_gradient(action.kind)) {
        const Action recompute{Kind::recompute, action.stage, action.microbatch};
        // Not between the two of a pair.
        const bool second_of_pair = !result.empty() && result.back().overlaps_next;
        result.insert(second_of_pair ? result.end() - 1 : result.end(), recompute);
      }
      result.push_back(action);
    }
    return result;
  });
}

Table add_step(const Table& table) {
  return with_lists(table, [](const Actions& actions) {
    std::vector<int> stages;  // the last to be complete first
    for (auto action = actions.rbegin(); action != actions.rend(); ++action) {
      if (completes_gradient(action->kind) && !std::ranges::count(stages, action->stage))
        stages.push_back(action->stage);
    }
    Actions result = actions;
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
      result.push_back({Kind::reduce_gradient, *stage});
    result.push_back({Kind::optimizer_step});
    return result;
  });
}

Table add_sharding(const Table& table, int max_active) {
  LOCKSTEP_CHECK(max_active >= 1, "at least the stage that computes is whole");
  return with_lists(table, [&](const Actions& actions) {
    Actions result;
    std::vector<int> active;
    const auto reshard = [&](int stage) { result.push_back({Kind::reshard, stage}); };
    for (size_t i = 0; i < actions.size(); ++i) {
      const bool inside_pair = i > 0 && actions[i - 1].overlaps_next;
      if (is_compute(actions[i].kind) && !inside_pair) {
        const int needed = actions[i].overlaps_next ? std::max(max_active, 2) : max_active;
        const std::vector<int> next = next_stages(actions, i, needed);
        std::erase_if(active, [&](int stage) {
          if (std::ranges::count(next, stage)) return false;
          reshard(stage);
          return true;
        });
        for (const int stage : next) {
          if (std::ranges::count(active, stage)) continue;
          result.push_back({Kind::unshard, stage});
          active.push_back(stage);
        }
      }
      if (actions[i].kind == Kind::optimizer_step) {  // updates shards
        std::ranges::for_each(active, reshard);
        active.clear();
      }
      result.push_back(actions[i]);
    }
    std::ranges::for_each(active, reshard);
    return result;
  });
}

}  // namespace lockstep::schedule
