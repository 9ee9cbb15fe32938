#include "lockstep/train/gradient_sets.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace lockstep::train {
namespace {

using Kind = schedule::Action::Kind;

// When the set's gradients are complete.
void read_actions(const std::vector<schedule::Action>& actions, GradientSet& set) {
  std::map<Kind, schedule::Action> last;
  for (const schedule::Action& action : actions) {
    if (std::ranges::find(set.stages, action.stage) == set.stages.end()) continue;
    if (schedule::makes_input_gradient(action.kind) || schedule::completes_gradient(action.kind)) {
      last[action.kind] = action;
    }
    if (action.kind == Kind::reduce_gradient) set.finished_with = action.stage;
  }
  if (set.stages.size() > 1) return;
  for (const auto& [kind, action] : last) set.last_backwards.push_back(action);
}

}  // namespace

std::vector<GradientSet> gradient_sets(const std::vector<spec::ParameterPlace>& places,
                                       const std::vector<schedule::Action>& actions, comm::ProcessGroup& world,
                                       comm::ProcessGroup& data_group) {
  using Key = std::tuple<std::vector<int>, std::vector<int>, std::vector<int>>;
  std::vector<Key> keys;
  std::vector<GradientSet> sets;
  for (size_t i = 0; i < places.size(); ++i) {
    const Key key{places[i].gradient_ranks, places[i].tied_ranks, places[i].stages};
    const auto found = std::ranges::find(keys, key);
    const auto set = static_cast<size_t>(found - keys.begin());
    if (found == keys.end()) {
      keys.push_back(key);
      sets.emplace_back();
    }
    sets[set].parameters.push_back(i);
  }

  std::vector<int> data_ranks;
  for (int rank = 0; rank < data_group.size(); ++rank) data_ranks.push_back(data_group.world_rank(rank));
  std::map<std::vector<int>, std::shared_ptr<comm::ProcessGroup>> own_groups;
  for (size_t set = 0; set < sets.size(); ++set) {
    const auto& [gradient_ranks, tied_ranks, stages] = keys[set];
    sets[set].stages = stages;
    sets[set].group = &data_group;
    if (gradient_ranks != data_ranks) {
      auto& group = own_groups[gradient_ranks];
      if (group == nullptr) group = world.split(gradient_ranks, text("gradients of ", join(gradient_ranks, ",")));
      sets[set].own_group = group;
      sets[set].group = group.get();
    }
    if (!tied_ranks.empty()) sets[set].tied_group = world.split(tied_ranks, text("tied on ", join(tied_ranks, ",")));
    read_actions(actions, sets[set]);
  }
  return sets;
}

}  // namespace lockstep::train
