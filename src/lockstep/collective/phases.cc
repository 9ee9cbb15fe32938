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

}  // namespace lockstep::collective
