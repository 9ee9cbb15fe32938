#include "lockstep/collective/builder.h"

#include "lockstep/collective/validate.h"

namespace lockstep::collective {
namespace {

int piece_count(const Builder::Options& options, int ranks) {
  switch (division(options.operation)) {
    case Division::whole:
      return options.pieces;
    case Division::per_rank:
      return ranks;
    case Division::per_pair:
      return ranks * ranks;
  }
  return 0;
}

}  // namespace

Builder::Builder(const Shape& shape, const Options& options) {
  const size_t ranks = static_cast<size_t>(shape.ranks);
  program_ = {.operation = options.operation,
              .algorithm = std::string(options.algorithm),
              .ranks = shape.ranks,
              .root = has_root(options.operation) ? shape.root : 0,
              .pieces = piece_count(options, shape.ranks),
              .rounding = options.rounding};
  program_.steps_by_rank.resize(ranks);
  program_.held_by_rank.resize(ranks);
  place_.assign(ranks, std::vector<std::optional<Buffer>>(static_cast<size_t>(program_.pieces)));
  updated_.assign(ranks, std::vector<int>(static_cast<size_t>(program_.pieces), -1));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const Held input = defined(program_, rank, Buffer::input);
    program_.held_by_rank[static_cast<size_t>(rank)] = {input, defined(program_, rank, Buffer::output), Held{}};
    for (int slot = 0; slot < input.count; ++slot) place(rank, input.first + slot * input.stride) = Buffer::input;
  }
}

std::optional<Buffer>& Builder::place(int rank, int piece) {
  return place_[static_cast<size_t>(rank)][static_cast<size_t>(piece)];
}

// Where a rank puts what comes: output when it holds the piece.
Buffer Builder::target(int rank, int piece) const {
  return program_.held(rank, Buffer::output).slot(piece) >= 0 ? Buffer::output : Buffer::scratch;
}

// Whether `piece` + 1 follows `piece` in the buffer. Scratch has all pieces in order until finish() cuts it.
bool Builder::adjacent(int rank, Buffer buffer, int piece) const {
  if (buffer == Buffer::scratch) return true;
  const Held& held = program_.held(rank, buffer);
  return held.slot(piece) >= 0 && held.slot(piece + 1) == held.slot(piece) + 1;
}

void Builder::append(int rank, const Step& step) {
  std::vector<Step>& steps = program_.steps_by_rank[static_cast<size_t>(rank)];
  LOCKSTEP_CHECK(steps.empty() || steps.back().round <= step.round, "rank ", rank, " in side-by-side work twice");
  steps.push_back(step);
}

void Builder::pass(Step::Kind kind, int from, int to, Run run) {
  LOCKSTEP_CHECK(from != to, "rank ", from, " to itself");
  const bool reducing = kind == Step::Kind::receive_reduce;
  const int end = run.first + run.count;
  for (int first = run.first; first < end;) {
    // What a piece must have in common with the first for both to be in one message.
    const auto kinship = [&](int piece) {
      LOCKSTEP_CHECK(place(from, piece).has_value(), "rank ", from, " has no piece ", piece);
      LOCKSTEP_CHECK(!reducing || place(to, piece).has_value(), "rank ", to, " has no piece ", piece);
      const Buffer goal = target(to, piece);
      // A further operand of the same round joins the others in the target.
      const Buffer own = !reducing || updated_[static_cast<size_t>(to)][static_cast<size_t>(piece)] == round_
                             ? goal
                             : *place(to, piece);
      return std::array{*place(from, piece), goal, own};
    };
    const auto [source, goal, own] = kinship(first);
    int count = 1;
    while (first + count < end && kinship(first + count) == std::array{source, goal, own} &&
           adjacent(from, source, first + count - 1) && adjacent(to, goal, first + count - 1) &&
           adjacent(to, own, first + count - 1)) {
      ++count;
    }
    append(from, {.kind = Step::Kind::send, .peer = to, .source = {source, first, count}, .round = round_});
    append(to, {.kind = kind,
                .peer = from,
                .source = reducing ? Chunk{own, first, count} : Chunk{},
                .target = {goal, first, count},
                .round = round_});
    for (int piece = first; piece < first + count; ++piece) {
      updates_.push_back({to, piece, goal});
      updated_[static_cast<size_t>(to)][static_cast<size_t>(piece)] = round_;
    }
    first += count;
  }
}

void Builder::move(int from, int to, const Pieces& pieces) {
  for (const Run& run : pieces) move(from, to, run);
}

void Builder::reduce(int from, int to, const Pieces& pieces) {
  for (const Run& run : pieces) reduce(from, to, run);
}

void Builder::collect(int rank, Run run) {
  const int end = run.first + run.count;
  for (int first = run.first; first < end;) {
    const Buffer goal = target(rank, first);
    const bool needed = place(rank, first) == Buffer::input;
    int count = 1;
    while (first + count < end && (place(rank, first + count) == Buffer::input) == needed &&
           target(rank, first + count) == goal && adjacent(rank, Buffer::input, first + count - 1) &&
           adjacent(rank, goal, first + count - 1)) {
      ++count;
    }
    if (needed) {
      append(rank, {.kind = Step::Kind::copy,
                    .source = {Buffer::input, first, count},
                    .target = {goal, first, count},
                    .round = round_});
      for (int piece = first; piece < first + count; ++piece) updates_.push_back({rank, piece, goal});
    }
    first += count;
  }
}

void Builder::collect(int rank, const Pieces& pieces) {
  for (const Run& run : pieces) collect(rank, run);
}

void Builder::next_round() {
  for (const Update& update : updates_) place(update.rank, update.piece) = update.buffer;
  updates_.clear();
  ++round_;
}

Program Builder::finish() {
  if (!updates_.empty()) next_round();
  for (int rank = 0; rank < program_.ranks; ++rank) {
    const Held& output = program_.held(rank, Buffer::output);
    for (int slot = 0; slot < output.count; ++slot) {
      const int piece = output.first + slot * output.stride;
      LOCKSTEP_CHECK(place(rank, piece).has_value(), "rank ", rank, " never gets piece ", piece);
      if (output.stride != 1) collect(rank, {piece, 1});
    }
    if (output.stride == 1) collect(rank, {output.first, output.count});
  }
  for (size_t rank = 0; rank < program_.steps_by_rank.size(); ++rank) {
    std::vector<Step>& steps = program_.steps_by_rank[rank];
    int first = program_.pieces, last = -1;
    for (const Step& step : steps) {
      program_.rounds = std::max(program_.rounds, step.round + 1);
      if (step.kind == Step::Kind::send || step.target.buffer != Buffer::scratch) continue;
      first = std::min(first, step.target.piece);
      last = std::max(last, step.target.piece + step.target.run - 1);
    }
    if (last >= 0) program_.held_by_rank[rank][static_cast<size_t>(Buffer::scratch)] = {first, 1, last - first + 1};
  }
  return std::move(program_);
}

}  // namespace lockstep::collective
