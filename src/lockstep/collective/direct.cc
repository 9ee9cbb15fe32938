// Direct: whoever needs a value gets it from whoever has it, in one round. What ranks that share memory do, where a
// message is a read of the other's memory. And naive: the same through one rank, the root, which is the definition of
// each operation written down; every other algorithm is compared with it.
#include "lockstep/collective/families.h"
#include "lockstep/collective/phases.h"

namespace lockstep::collective {
namespace direct {

void broadcast(Builder& builder, const Group& group) {
  const Pieces all = blocks_of(group, 0, static_cast<int>(group.blocks.size()));
  for (int i = 1; i < group.size(); ++i) builder.move(group.rank(0), group.rank(i), all);
  builder.next_round();
}

void reduce(Builder& builder, const Group& group) {
  const Pieces all = blocks_of(group, 0, static_cast<int>(group.blocks.size()));
  for (int i = 1; i < group.size(); ++i) builder.reduce(group.rank(i), group.rank(0), all);
  builder.next_round();
}

void scatter(Builder& builder, const Group& group) {
  for (int i = 1; i < group.size(); ++i) builder.move(group.rank(0), group.rank(i), group.block(i));
  builder.next_round();
}

void gather(Builder& builder, const Group& group) {
  builder.collect(group.rank(0), group.block(0));
  for (int i = 1; i < group.size(); ++i) builder.move(group.rank(i), group.rank(0), group.block(i));
  builder.next_round();
}

void reduce_scatter(Builder& builder, const Group& group) {
  for (int distance = 1; distance < group.size(); ++distance) {
    for (int i = 0; i < group.size(); ++i) {
      const int to = (i + distance) % group.size();
      builder.reduce(group.rank(i), group.rank(to), group.block(to));
    }
  }
  builder.next_round();
}

void all_gather(Builder& builder, const Group& group) {
  for (int distance = 1; distance < group.size(); ++distance) {
    for (int i = 0; i < group.size(); ++i) {
      builder.move(group.rank(i), group.rank((i + distance) % group.size()), group.block(i));
    }
  }
  builder.next_round();
}

Program all_reduce(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "direct", Rounding::once, shape.ranks});
  const Group group = everyone(builder);
  reduce_scatter(builder, group);
  all_gather(builder, group);
  return builder.finish();
}

Program all_reduce_whole(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "direct_whole", Rounding::once});
  for (int distance = 1; distance < shape.ranks; ++distance) {
    for (int from = 0; from < shape.ranks; ++from) builder.reduce(from, (from + distance) % shape.ranks, builder.all());
  }
  builder.next_round();
  return builder.finish();
}

Program reduce_scatter(const Shape& shape) {
  Builder builder(shape, {Operation::reduce_scatter, "direct", Rounding::once});
  reduce_scatter(builder, everyone(builder));
  return builder.finish();
}

Program all_gather(const Shape& shape) {
  Builder builder(shape, {Operation::all_gather, "direct", Rounding::none});
  all_gather(builder, everyone(builder));
  return builder.finish();
}

}  // namespace direct

namespace naive {

Program broadcast(const Shape& shape) {
  Builder builder(shape, {Operation::broadcast, "naive", Rounding::none});
  direct::broadcast(builder, everyone(builder));
  return builder.finish();
}

Program reduce(const Shape& shape) {
  Builder builder(shape, {Operation::reduce, "naive", Rounding::once});
  direct::reduce(builder, everyone(builder));
  return builder.finish();
}

Program all_reduce(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "naive", Rounding::once});
  const Group group = everyone(builder);
  direct::reduce(builder, group);
  direct::broadcast(builder, group);
  return builder.finish();
}

Program reduce_scatter(const Shape& shape) {
  Builder builder(shape, {Operation::reduce_scatter, "naive", Rounding::once});
  const Group group = everyone(builder);
  direct::reduce(builder, group);
  direct::scatter(builder, group);
  return builder.finish();
}

Program all_gather(const Shape& shape) {
  Builder builder(shape, {Operation::all_gather, "naive", Rounding::none});
  const Group group = everyone(builder);
  direct::gather(builder, group);
  direct::broadcast(builder, group);
  return builder.finish();
}

Program scatter(const Shape& shape) {
  Builder builder(shape, {Operation::scatter, "naive", Rounding::none});
  direct::scatter(builder, everyone(builder));
  return builder.finish();
}

Program gather(const Shape& shape) {
  Builder builder(shape, {Operation::gather, "naive", Rounding::none});
  direct::gather(builder, everyone(builder));
  return builder.finish();
}

}  // namespace naive
}  // namespace lockstep::collective
