// all_to_all: every rank has a block for every other. Naive sends all through rank 0; direct exchanges with all at
// once; pairwise meets one partner a round, so that no rank is sent to by two at the same time.
#include "lockstep/collective/families.h"
#include "lockstep/collective/phases.h"

namespace lockstep::collective {
namespace {

constexpr Builder::Options options(std::string_view algorithm) {
  return {Operation::all_to_all, algorithm, Rounding::none};
}

// What every rank sends to the one `distance` above it.
void exchange(Builder& builder, int distance) {
  const int ranks = builder.ranks();
  for (int from = 0; from < ranks; ++from) {
    const int to = (from + distance) % ranks;
    builder.move(from, to, Run{from * ranks + to, 1});
  }
}

}  // namespace

Program naive::all_to_all(const Shape& shape) {
  Builder builder(shape, options("naive"));
  const int ranks = shape.ranks;
  for (int from = 1; from < ranks; ++from) builder.move(from, 0, Run{from * ranks, ranks});
  builder.next_round();
  for (int to = 1; to < ranks; ++to) {
    for (int from = 0; from < ranks; ++from) builder.move(0, to, Run{from * ranks + to, 1});
  }
  builder.next_round();
  return builder.finish();
}

Program direct::all_to_all(const Shape& shape) {
  Builder builder(shape, options("direct"));
  for (int distance = 1; distance < shape.ranks; ++distance) exchange(builder, distance);
  builder.next_round();
  return builder.finish();
}

Program pairwise::all_to_all(const Shape& shape) {
  Builder builder(shape, options("pairwise"));
  for (int distance = 1; distance < shape.ranks; ++distance) {
    exchange(builder, distance);
    builder.next_round();
  }
  return builder.finish();
}

}  // namespace lockstep::collective
