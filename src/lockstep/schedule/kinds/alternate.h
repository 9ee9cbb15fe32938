// The skeleton that nearly all schedules share. A rank does some forwards (the warm-up), then a forward and a backward
// in turn (the steady state), then the backwards that are left. Schedules differ in the two orders, the length of the
// warm-up, and in whether weight gradients are put off.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/schedule/generators.h"

namespace lockstep::schedule {

struct Piece {
  int stage = 0, microbatch = 0;
};

struct Alternation {
  std::vector<Piece> forwards, backwards;  // each of the rank's (stage, micro-batch) once
  int warm_up = 0;                         // forwards before the first backward, besides the steady state's own
  // Splits backwards: the weight gradient follows so many input gradients later; at the end those that are left.
  std::optional<int> weight_lag;
};
std::vector<Action> alternate(const Alternation& alternation);

// Orders of one rank's pieces, whose chunk c is stage c * ranks + rank.
// Micro-batches in groups of `group`, each group through all chunks before the next (backward: the last chunk first).
std::vector<Piece> forwards_by_group(const Shape& shape, int rank, int group);
std::vector<Piece> backwards_by_group(const Shape& shape, int rank, int group);
// All micro-batches through a chunk before the next chunk.
std::vector<Piece> forwards_by_chunk(const Shape& shape, int rank);
std::vector<Piece> backwards_by_chunk(const Shape& shape, int rank);

// A table of a schedule that says what each rank does.
template <class ActionsOfRank>
Table table_of(const Shape& shape, Placement placement, ActionsOfRank actions_of_rank) {
  Table table{.ranks = shape.ranks,
              .microbatches = shape.microbatches,
              .rank_of_stage = place_stages(placement, shape.ranks, shape.chunks)};
  for (int rank = 0; rank < shape.ranks; ++rank) table.actions_by_rank.push_back(actions_of_rank(rank));
  return table;
}

}  // namespace lockstep::schedule
