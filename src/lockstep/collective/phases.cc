#include "lockstep/collective/phases.h"

#include "lockstep/mesh/placement.h"

namespace lockstep::collective {

Group everyone(const Builder& builder) {
  Group group;
  const int ranks = builder.ranks();
  for (int i = 0; i < ranks; ++i) {
    const int rank = (builder.root() + i) % ranks;
    const mesh::Range block = mesh::split(builder.all().count, {rank, ranks});
    group.ranks.push_back(rank);
    group.blocks.push_back({{static_cast<int>(block.offset), static_cast<int>(block.size)}});
  }
  return group;
}

Pieces blocks_of(const Group& group, int first, int count) {
  Pieces joined;
  for (int member = first; member < first + count; ++member) {
    for (const Run& run : group.block(member)) {
      if (!joined.empty() && joined.back().first + joined.back().count == run.first) {
        joined.back().count += run.count;
      } else {
        joined.push_back(run);
      }
    }
  }
  return joined;
}

}  // namespace lockstep::collective
