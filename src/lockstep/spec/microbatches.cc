#include "lockstep/spec/microbatches.h"

#include <bit>

#include "lockstep/base/error.h"

namespace lockstep::spec {

namespace {

// Whether the leaves [begin, end) of `count` are all those below one node: an aligned power of two of them, or what
// there is of it at the end.
bool is_subtree(int64_t begin, int64_t end, int64_t count) {
  const auto size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(end - begin)));
  return begin % size == 0 && (end - begin == size || end == count);
}

}  // namespace

int64_t num_microbatches(const TrainSpec& train) {
  LOCKSTEP_CHECK(train.microbatch >= 1 && train.global_batch % train.microbatch == 0, "an unvalidated plan");
  return train.global_batch / train.microbatch;
}

mesh::Range microbatches_of_rank(int64_t num_microbatches, mesh::Piece data_rank) {
  return mesh::split(num_microbatches, data_rank);
}

bool fits_fixed_tree(int64_t num_microbatches, int64_t data_ranks) {
  if (data_ranks < 1 || num_microbatches < data_ranks) return false;
  const auto begin_of = [&](int64_t rank) {
    if (rank >= data_ranks) return num_microbatches;
    return mesh::split(num_microbatches, {static_cast<int>(rank), static_cast<int>(data_ranks)}).offset;
  };
  // A node of the tree over ranks joins the runs of `width` neighbours, which must be a node of the tree over
  // micro-batches.
  for (int64_t width = 1; width < 2 * data_ranks; width *= 2) {
    for (int64_t rank = 0; rank < data_ranks; rank += width) {
      if (!is_subtree(begin_of(rank), begin_of(rank + width), num_microbatches)) return false;
    }
  }
  return true;
}

}  // namespace lockstep::spec
