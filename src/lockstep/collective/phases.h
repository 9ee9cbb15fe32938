// What algorithms are made of: each phase works on a group, any of the program's ranks, and leaves the builder between
// rounds. Flat algorithms are one or two phases over all ranks, hierarchical ones the same phases inside hosts and then
// between them.
#pragma once

#include <vector>

#include "lockstep/collective/builder.h"

namespace lockstep::collective {

// Ranks in the order in which an algorithm numbers them, and for each the pieces that are its own.
struct Group {
  std::vector<int> ranks;
  std::vector<Pieces> blocks;  // as many as ranks, where a phase deals in blocks; otherwise unused

  int size() const { return static_cast<int>(ranks.size()); }
  int rank(int member) const { return ranks[static_cast<size_t>(member)]; }
  const Pieces& block(int member) const { return blocks[static_cast<size_t>(member)]; }
};

// All ranks, from the shape's root on when the operation has one; blocks are the pieces in equal parts.
Group everyone(const Builder& builder);

namespace ring {
// Member i sends to i + 1; size - 1 rounds. Before: each has all blocks. After: each has its own, reduced.
void reduce_scatter(Builder& builder, const Group& group);
// Before: each has its own block. After: all.
void all_gather(Builder& builder, const Group& group);
// A chain from member 0 to the last, block after block, so that all links are busy: size - 2 + blocks rounds.
void broadcast(Builder& builder, const Group& group);
// The chain the other way round: the last member sends first, member 0 has the result.
void reduce(Builder& builder, const Group& group);
}  // namespace ring

}  // namespace lockstep::collective
