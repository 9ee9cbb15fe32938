// Ring: every rank talks to its two neighbours only, and all links carry the same at any time. Best for long vectors:
// each rank sends 2 (p-1)/p of the vector in an all_reduce, the least there is; worst for short ones, at 2 (p-1)
// rounds. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
#include "lockstep/collective/families.h"
#include "lockstep/collective/phases.h"

namespace lockstep::collective::ring {

void reduce_scatter(Builder& builder, const Group& group) {
  const int size = group.size();
  for (int round = 0; round < size - 1; ++round) {
    for (int i = 0; i < size; ++i) {
      // Block b starts at member b + 1, passes every member and is complete at b.
      const int block = (i - 1 - round + 2 * size) % size;
      builder.reduce(group.rank(i), group.rank((i + 1) % size), group.block(block));
    }
    builder.next_round();
  }
}

void all_gather(Builder& builder, const Group& group) {
  const int size = group.size();
  for (int round = 0; round < size - 1; ++round) {
    for (int i = 0; i < size; ++i) {
      builder.move(group.rank(i), group.rank((i + 1) % size), group.block((i - round + size) % size));
    }
    builder.next_round();
  }
}

void broadcast(Builder& builder, const Group& group) {
  const int size = group.size();
  const int blocks = static_cast<int>(group.blocks.size());
  for (int round = 0; size > 1 && round < size - 2 + blocks; ++round) {
    for (int i = 0; i < size - 1; ++i) {
      const int block = round - i;
      if (block >= 0 && block < blocks) builder.move(group.rank(i), group.rank(i + 1), group.block(block));
    }
    builder.next_round();
  }
}

void reduce(Builder& builder, const Group& group) {
  const int size = group.size();
  const int blocks = static_cast<int>(group.blocks.size());
  for (int round = 0; size > 1 && round < size - 2 + blocks; ++round) {
    for (int i = size - 1; i > 0; --i) {
      const int block = round - (size - 1 - i);
      if (block >= 0 && block < blocks) builder.reduce(group.rank(i), group.rank(i - 1), group.block(block));
    }
    builder.next_round();
  }
}

Program broadcast(const Shape& shape) {
  Builder builder(shape, {Operation::broadcast, "ring", Rounding::none, shape.ranks});
  broadcast(builder, everyone(builder));
  return builder.finish();
}

Program reduce(const Shape& shape) {
  Builder builder(shape, {Operation::reduce, "ring", Rounding::per_hop, shape.ranks});
  reduce(builder, everyone(builder));
  return builder.finish();
}

Program all_reduce(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "ring", Rounding::per_hop, shape.ranks});
  const Group group = everyone(builder);
  reduce_scatter(builder, group);
  all_gather(builder, group);
  return builder.finish();
}

Program reduce_scatter(const Shape& shape) {
  Builder builder(shape, {Operation::reduce_scatter, "ring", Rounding::per_hop});
  reduce_scatter(builder, everyone(builder));
  return builder.finish();
}

Program all_gather(const Shape& shape) {
  Builder builder(shape, {Operation::all_gather, "ring", Rounding::none});
  all_gather(builder, everyone(builder));
  return builder.finish();
}

}  // namespace lockstep::collective::ring
