#include "lockstep/train/gradient_sets.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/schedule/last_gradients.h"

namespace lockstep::train {
namespace {

// When the set's gradients are complete.
void read_actions(const std::vector<schedule::Action>& actions, GradientSet& set) {
  const std::vector<bool> brings_last = schedule::brings_last_gradients(actions);
  for (size_t i = 0; i < actions.size(); ++i) {
    if (std::ranges::find(set.stages, actions[i].stage) == set.stages.end()) continue;
    if (actions[i].kind == schedule::Action::Kind::reduce_gradient) set.finished_with = actions[i].stage;
    if (brings_last[i] && set.stages.size() == 1) set.last_backwards.push_back(actions[i]);
  }
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
