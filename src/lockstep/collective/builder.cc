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
  places_.assign(ranks, std::vector<Place>(static_cast<size_t>(program_.pieces)));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const Held input = defined(program_, rank, Buffer::input);
    program_.held_by_rank[static_cast<size_t>(rank)] = {input, defined(program_, rank, Buffer::output), Held{}};
    for (int slot = 0; slot < input.count; ++slot) place(rank, input.first + slot * input.stride).now = Buffer::input;
  }
}

Builder::Place& Builder::place(int rank, int piece) {
  return places_[static_cast<size_t>(rank)][static_cast<size_t>(piece)];
}

Buffer Builder::goal(int rank, Run run) const {
  const Held& output = program_.held(rank, Buffer::output);
  for (int piece = run.first; piece < run.first + run.count; ++piece) {
    if (output.slot(piece) < 0) return Buffer::scratch;
  }
  return Buffer::output;
}

// Whether `piece` + 1 follows `piece` in the buffer. Scratch has all pieces in order until cut_scratch().
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

void Builder::arrive(int rank, Run run, Buffer buffer) {
  for (int piece = run.first; piece < run.first + run.count; ++piece) {
    place(rank, piece).next = buffer;
    place(rank, piece).round = round_;
    arrivals_.emplace_back(rank, piece);
  }
}

void Builder::pass(Step::Kind kind, int from, int to, Run run) {
  LOCKSTEP_CHECK(from != to, "rank ", from, " to itself");
  const bool reducing = kind == Step::Kind::receive_reduce;
  const int end = run.first + run.count;
  const Buffer goal = this->goal(to, run);
  // What the pieces of one message have in common: where they are, and where what they are added to is.
  const auto kinship = [&](int piece) {
    const Place& own = place(to, piece);
    LOCKSTEP_CHECK(place(from, piece).now.has_value(), "rank ", from, " has no piece ", piece);
    LOCKSTEP_CHECK(!reducing || own.now.has_value(), "rank ", to, " has no piece ", piece);
    LOCKSTEP_CHECK(!own.next.has_value() || (reducing && own.next == goal), "rank ", to, " gets piece ", piece,
                   " twice");
    const Buffer addend = !reducing || own.next.has_value() ? goal : *own.now;
    return std::pair{*place(from, piece).now, addend};
  };
  for (int first = run.first; first < end;) {
    const auto [source, addend] = kinship(first);
    int count = 1;
    while (first + count < end && kinship(first + count) == std::pair{source, addend} &&
           adjacent(from, source, first + count - 1) && adjacent(to, goal, first + count - 1) &&
           adjacent(to, addend, first + count - 1)) {
      ++count;
    }
    append(from, {.kind = Step::Kind::send, .peer = to, .source = {source, first, count}, .round = round_});
    append(to, {.kind = kind,
                .peer = from,
                .source = reducing ? Chunk{addend, first, count} : Chunk{},
                .target = {goal, first, count},
                .round = round_});
    arrive(to, {first, count}, goal);
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
  const Buffer goal = this->goal(rank, run);
  for (int first = run.first; first < end;) {
    const std::optional<Buffer> source = place(rank, first).now;
    LOCKSTEP_CHECK(source.has_value(), "rank ", rank, " has no piece ", first);
    int count = 1;
    while (first + count < end && place(rank, first + count).now == source &&
           adjacent(rank, *source, first + count - 1) && adjacent(rank, goal, first + count - 1)) {
      ++count;
    }
    if (*source != goal) {
      append(rank, {.kind = Step::Kind::copy,
                    .source = {*source, first, count},
                    .target = {goal, first, count},
                    .round = round_});
      arrive(rank, {first, count}, goal);
    }
    first += count;
  }
}

void Builder::collect(int rank, const Pieces& pieces) {
  for (const Run& run : pieces) collect(rank, run);
}

void Builder::next_round() {
  if (arrivals_.empty()) return;
  for (const auto& [rank, piece] : arrivals_) {
    if (place(rank, piece).next) place(rank, piece).now = std::exchange(place(rank, piece).next, std::nullopt);
  }
  arrivals_.clear();
  ++round_;
}

Program Builder::finish() {
  next_round();
  // Copies go into the last round, unless one of them is of what that round brings.
  bool joins_last = round_ > 0;
  std::vector<std::pair<int, Run>> wanted;
  for (int rank = 0; rank < program_.ranks; ++rank) {
    const Held& output = program_.held(rank, Buffer::output);
    for (int slot = 0; slot < output.count; ++slot) {
      const int piece = output.first + slot * output.stride;
      const Place& at = place(rank, piece);
      joins_last = joins_last && (at.now == Buffer::output || at.round != round_ - 1);
      if (output.stride != 1) wanted.push_back({rank, {piece, 1}});
    }
    if (output.stride == 1) wanted.push_back({rank, {output.first, output.count}});
  }
  if (joins_last) --round_;
  for (const auto& [rank, run] : wanted) collect(rank, run);
  cut_scratch();
  return std::move(program_);
}

void Builder::cut_scratch() {
  for (size_t rank = 0; rank < program_.steps_by_rank.size(); ++rank) {
    int first = program_.pieces, last = -1;
    for (const Step& step : program_.steps_by_rank[rank]) {
      program_.rounds = std::max(program_.rounds, step.round + 1);
      if (step.kind == Step::Kind::send || step.target.buffer != Buffer::scratch) continue;
      first = std::min(first, step.target.piece);
      last = std::max(last, step.target.piece + step.target.run - 1);
    }
    if (last >= 0) program_.held_by_rank[rank][static_cast<size_t>(Buffer::scratch)] = {first, 1, last - first + 1};
  }
}

}  // namespace lockstep::collective
