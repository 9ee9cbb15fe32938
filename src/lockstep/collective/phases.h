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

// The ranks from the shape's root on when the operation has one, from 0 otherwise; blocks are the pieces in as many
// parts, part i rank i's.
Group everyone(const Builder& builder);
// The blocks of members first, ..., first + count - 1, in the fewest runs.
Pieces blocks_of(const Group& group, int first, int count);

// What the phases of a family leave, where the names are alike:
//   broadcast        all pieces of all blocks, from member 0, are with every member
//   reduce           the sum of all members' values of all blocks is with member 0
//   scatter          member 0's blocks are with their members
//   gather           the members' blocks are with member 0
//   reduce_scatter   each member's block, summed, is with that member
//   all_gather       every member's block is with all
namespace direct {
void broadcast(Builder& builder, const Group& group);
void reduce(Builder& builder, const Group& group);
void scatter(Builder& builder, const Group& group);
void gather(Builder& builder, const Group& group);
void reduce_scatter(Builder& builder, const Group& group);
void all_gather(Builder& builder, const Group& group);
}  // namespace direct

namespace binomial_tree {
// Blocks travel whole to members of a subtree, so a subtree's blocks should be neighbours: each is a message otherwise.
void broadcast(Builder& builder, const Group& group);
void reduce(Builder& builder, const Group& group);
void scatter(Builder& builder, const Group& group);
void gather(Builder& builder, const Group& group);
}  // namespace binomial_tree

namespace recursive {
// Sizes that are no power of two: of the first 2 * rest members the even ones hand theirs to the next one before (fold)
// and get their result after (unfold).
void reduce_scatter(Builder& builder, const Group& group);
void all_gather(Builder& builder, const Group& group);
// Halving, then doubling, between one fold and one unfold.
void all_reduce(Builder& builder, const Group& group);
// Pairs exchange and add the whole vector; log2 rounds.
void all_reduce_whole(Builder& builder, const Group& group);
}  // namespace recursive

namespace ring {
// Member i sends to i + 1; size - 1 rounds.
void reduce_scatter(Builder& builder, const Group& group);
void all_gather(Builder& builder, const Group& group);
// A chain from member 0 to the last, block after block, so that all links are busy: size - 2 + blocks rounds.
void broadcast(Builder& builder, const Group& group);
// The chain the other way round: the last member sends first.
void reduce(Builder& builder, const Group& group);
}  // namespace ring

}  // namespace lockstep::collective
