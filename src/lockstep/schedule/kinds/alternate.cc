#include "lockstep/schedule/kinds/alternate.h"

#include <algorithm>

namespace lockstep::schedule {

std::vector<Action> alternate(const Alternation& alternation) {
  using enum Action::Kind;
  const auto& [forwards, backwards, warm_up, weight_lag] = alternation;
  std::vector<Action> actions;
  size_t forwards_done = 0, weights_done = 0;
  const auto add = [&](Action::Kind kind, const Piece& piece) {
    actions.push_back({kind, piece.stage, piece.microbatch});
  };
  const auto add_forward = [&] {
    if (forwards_done < forwards.size()) add(forward, forwards[forwards_done++]);
  };
  for (int i = 0; i < warm_up; ++i) add_forward();
  for (size_t b = 0; b < backwards.size(); ++b) {
    add_forward();
    add(weight_lag ? input_grad : backward, backwards[b]);
    if (weight_lag && b >= static_cast<size_t>(*weight_lag)) add(weight_grad, backwards[weights_done++]);
  }
  while (weight_lag && weights_done < backwards.size()) add(weight_grad, backwards[weights_done++]);
  return actions;
}

std::vector<Piece> forwards_by_group(const Shape& shape, int rank, int group) {
  std::vector<Piece> pieces;
  for (int first = 0; first < shape.microbatches; first += group) {
    const int last = std::min(first + group, shape.microbatches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int microbatch = first; microbatch < last; ++microbatch) {
        pieces.push_back({chunk * shape.ranks + rank, microbatch});
      }
    }
  }
  return pieces;
}

std::vector<Piece> backwards_by_group(const Shape& shape, int rank, int group) {
  std::vector<Piece> pieces = forwards_by_group(shape, rank, group);
  for (Piece& piece : pieces) {
    const int chunk = piece.stage / shape.ranks;
    piece.stage = (shape.chunks - 1 - chunk) * shape.ranks + rank;
  }
  return pieces;
}

std::vector<Piece> forwards_by_chunk(const Shape& shape, int rank) {
  return forwards_by_group(shape, rank, shape.microbatches);
}

std::vector<Piece> backwards_by_chunk(const Shape& shape, int rank) {
  std::vector<Piece> pieces = backwards_by_group(shape, rank, shape.microbatches);
  if (shape.backward_order == BackwardOrder::falling) {
    for (Piece& piece : pieces) piece.microbatch = shape.microbatches - 1 - piece.microbatch;
  }
  return pieces;
}

}  // namespace lockstep::schedule
