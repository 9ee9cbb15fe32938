// Recursive halving and doubling: ranks exchange with the one at distance p/2, p/4, ..., 1 (halving: half of what is
// left each time) or 1, 2, ..., p/2 (doubling). log2 p rounds and, at powers of two, no more bytes than the ring.
// Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH".
#include "lockstep/collective/families.h"
#include "lockstep/collective/phases.h"

namespace lockstep::collective {
namespace recursive {
namespace {

// The power-of-two many members that take part in exchanges, and which members' blocks each stands for. After the fold
// of 2 * rest members those with odd numbers stand for two.
class Active {
 public:
  explicit Active(const Group& group) : group_(group) {
    while (count_ * 2 <= group.size()) count_ *= 2;
    rest_ = group.size() - count_;
  }
  int count() const { return count_; }
  int folded() const { return rest_; }
  int rank(int active) const { return group_.rank(active < rest_ ? 2 * active + 1 : active + rest_); }
  int folded_rank(int active) const { return group_.rank(2 * active); }
  Pieces blocks(int first, int count) const {
    return blocks_of(group_, first_member(first), first_member(first + count) - first_member(first));
  }
  Pieces all() const { return blocks_of(group_, 0, static_cast<int>(group_.blocks.size())); }

 private:
  int first_member(int active) const { return active < rest_ ? 2 * active : active + rest_; }

  const Group& group_;
  int count_ = 1, rest_ = 0;
};

void fold_sums(Builder& builder, const Active& active) {
  if (active.folded() == 0) return;
  for (int i = 0; i < active.folded(); ++i) builder.reduce(active.folded_rank(i), active.rank(i), active.all());
  builder.next_round();
}

void unfold_results(Builder& builder, const Active& active) {
  if (active.folded() == 0) return;
  for (int i = 0; i < active.folded(); ++i) builder.move(active.rank(i), active.folded_rank(i), active.all());
  builder.next_round();
}

void halve(Builder& builder, const Active& active) {
  for (int distance = active.count() / 2; distance >= 1; distance /= 2) {
    for (int i = 0; i < active.count(); ++i) {
      const int partner = i ^ distance;
      builder.reduce(active.rank(i), active.rank(partner), active.blocks(partner & ~(distance - 1), distance));
    }
    builder.next_round();
  }
}

void double_up(Builder& builder, const Active& active) {
  for (int distance = 1; distance < active.count(); distance *= 2) {
    for (int i = 0; i < active.count(); ++i) {
      builder.move(active.rank(i), active.rank(i ^ distance), active.blocks(i & ~(distance - 1), distance));
    }
    builder.next_round();
  }
}

}  // namespace

void reduce_scatter(Builder& builder, const Group& group) {
  const Active active(group);
  fold_sums(builder, active);
  halve(builder, active);
  if (active.folded() == 0) return;
  for (int i = 0; i < active.folded(); ++i) {
    builder.move(active.rank(i), active.folded_rank(i), group.block(2 * i));
  }
  builder.next_round();
}

void all_gather(Builder& builder, const Group& group) {
  const Active active(group);
  for (int i = 0; i < group.size(); ++i) builder.collect(group.rank(i), group.block(i));
  for (int i = 0; i < active.folded(); ++i) {
    builder.move(active.folded_rank(i), active.rank(i), group.block(2 * i));
  }
  if (active.folded() > 0) builder.next_round();
  double_up(builder, active);
  if (active.folded() == 0) return;
  for (int i = 0; i < active.folded(); ++i) {  // all but what the folded one gave
    builder.move(active.rank(i), active.folded_rank(i), blocks_of(group, 0, 2 * i));
    builder.move(active.rank(i), active.folded_rank(i), blocks_of(group, 2 * i + 1, group.size() - 2 * i - 1));
  }
  builder.next_round();
}

void all_reduce(Builder& builder, const Group& group) {
  const Active active(group);
  fold_sums(builder, active);
  halve(builder, active);
  double_up(builder, active);
  unfold_results(builder, active);
}

void all_reduce_whole(Builder& builder, const Group& group) {
  const Active active(group);
  fold_sums(builder, active);
  for (int distance = 1; distance < active.count(); distance *= 2) {
    for (int i = 0; i < active.count(); ++i) {
      builder.reduce(active.rank(i), active.rank(i ^ distance), active.all());
    }
    builder.next_round();
  }
  unfold_results(builder, active);
}

Program all_reduce(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "recursive", Rounding::per_hop, shape.ranks});
  all_reduce(builder, everyone(builder));
  return builder.finish();
}

Program all_reduce_whole(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "recursive_whole", Rounding::per_hop});
  all_reduce_whole(builder, everyone(builder));
  return builder.finish();
}

Program reduce_scatter(const Shape& shape) {
  Builder builder(shape, {Operation::reduce_scatter, "recursive", Rounding::per_hop});
  reduce_scatter(builder, everyone(builder));
  return builder.finish();
}

Program all_gather(const Shape& shape) {
  Builder builder(shape, {Operation::all_gather, "recursive", Rounding::none});
  all_gather(builder, everyone(builder));
  return builder.finish();
}

}  // namespace recursive
}  // namespace lockstep::collective
