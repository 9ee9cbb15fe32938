// Binomial tree: in every round each rank that has the value passes it to one that has not, so ceil(log2 p) rounds
// reach all. Best for short vectors. Member 0 is the root; the parent of a member is that member without its lowest one
// bit, and the subtree of i is i, ..., i + lowest_bit(i) - 1.
#include "lockstep/collective/families.h"
#include "lockstep/collective/phases.h"

namespace lockstep::collective {
namespace binomial_tree {
namespace {

int half_of(int size) {  // the largest power of two below size; 0 when there is none
  int half = size > 1 ? 1 : 0;
  while (half != 0 && half * 2 < size) half *= 2;
  return half;
}

// Calls pass(parent, child, members of the child's subtree) for all edges of one distance.
template <typename Pass>
void for_each_edge(const Group& group, int distance, Pass pass) {
  for (int child = distance; child < group.size(); child += 2 * distance) {
    pass(child - distance, child, std::min(distance, group.size() - child));
  }
}

}  // namespace

void broadcast(Builder& builder, const Group& group) {
  const Pieces all = blocks_of(group, 0, static_cast<int>(group.blocks.size()));
  for (int distance = half_of(group.size()); distance >= 1; distance /= 2) {
    for_each_edge(group, distance,
                  [&](int parent, int child, int) { builder.move(group.rank(parent), group.rank(child), all); });
    builder.next_round();
  }
}

void reduce(Builder& builder, const Group& group) {
  const Pieces all = blocks_of(group, 0, static_cast<int>(group.blocks.size()));
  for (int distance = 1; distance < group.size(); distance *= 2) {
    for_each_edge(group, distance,
                  [&](int parent, int child, int) { builder.reduce(group.rank(child), group.rank(parent), all); });
    builder.next_round();
  }
}

void scatter(Builder& builder, const Group& group) {
  for (int distance = half_of(group.size()); distance >= 1; distance /= 2) {
    for_each_edge(group, distance, [&](int parent, int child, int members) {
      builder.move(group.rank(parent), group.rank(child), blocks_of(group, child, members));
    });
    builder.next_round();
  }
}

void gather(Builder& builder, const Group& group) {
  for (int distance = 1; distance < group.size(); distance *= 2) {
    for_each_edge(group, distance, [&](int parent, int child, int members) {
      // In the first round, so that it lies beside what is gathered.
      if (distance == 1) builder.collect(group.rank(parent), group.block(parent));
      builder.move(group.rank(child), group.rank(parent), blocks_of(group, child, members));
    });
    builder.next_round();
  }
}

Program broadcast(const Shape& shape) {
  Builder builder(shape, {Operation::broadcast, "binomial_tree", Rounding::none});
  broadcast(builder, everyone(builder));
  return builder.finish();
}

Program reduce(const Shape& shape) {
  Builder builder(shape, {Operation::reduce, "binomial_tree", Rounding::per_hop});
  reduce(builder, everyone(builder));
  return builder.finish();
}

Program all_reduce(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "binomial_tree", Rounding::per_hop});
  const Group group = everyone(builder);
  reduce(builder, group);
  broadcast(builder, group);
  return builder.finish();
}

Program reduce_scatter(const Shape& shape) {
  Builder builder(shape, {Operation::reduce_scatter, "binomial_tree", Rounding::per_hop});
  const Group group = everyone(builder);
  reduce(builder, group);
  scatter(builder, group);
  return builder.finish();
}

Program all_gather(const Shape& shape) {
  Builder builder(shape, {Operation::all_gather, "binomial_tree", Rounding::none});
  const Group group = everyone(builder);
  gather(builder, group);
  broadcast(builder, group);
  return builder.finish();
}

Program scatter(const Shape& shape) {
  Builder builder(shape, {Operation::scatter, "binomial_tree", Rounding::none});
  scatter(builder, everyone(builder));
  return builder.finish();
}

Program gather(const Shape& shape) {
  Builder builder(shape, {Operation::gather, "binomial_tree", Rounding::none});
  gather(builder, everyone(builder));
  return builder.finish();
}

}  // namespace binomial_tree
}  // namespace lockstep::collective
