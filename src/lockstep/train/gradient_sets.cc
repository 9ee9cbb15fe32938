#include "lockstep/train/gradient_sets.h"

#include <algorithm>

namespace lockstep::train {

std::vector<GradientSet> gradient_sets(const std::vector<spec::ParameterPlace>& places, comm::ProcessGroup& world,
                                       comm::ProcessGroup& data_group) {
  std::vector<int> data_ranks;
  for (int rank = 0; rank < data_group.size(); ++rank) data_ranks.push_back(data_group.world_rank(rank));
  std::vector<std::vector<int>> rank_sets;
  std::vector<GradientSet> sets;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto found = std::ranges::find(rank_sets, places[i].gradient_ranks);
    const auto set = static_cast<size_t>(found - rank_sets.begin());
    if (found == rank_sets.end()) {
      rank_sets.push_back(places[i].gradient_ranks);
      sets.emplace_back();
    }
    sets[set].parameters.push_back(i);
  }
  for (size_t set = 0; set < sets.size(); ++set) {
    sets[set].group = &data_group;
    if (rank_sets[set] == data_ranks) continue;
    sets[set].own_group = world.split(rank_sets[set], text("gradients of ", join(rank_sets[set], ",")));
    sets[set].group = sets[set].own_group.get();
  }
  return sets;
}

}  // namespace lockstep::train
