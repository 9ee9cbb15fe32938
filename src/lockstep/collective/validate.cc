#include "lockstep/collective/validate.h"

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/text.h"

namespace lockstep::collective {
namespace {

using Kind = Step::Kind;
using Place = std::pair<Buffer, int>;  // a piece in a buffer of one rank

bool has_source(const Step& step) {
  return step.kind != Kind::receive;
}

bool has_target(const Step& step) {
  return step.kind != Kind::send;
}

std::string to_string(const Chunk& chunk) {
  const std::string last = chunk.run == 1 ? "" : text("..", chunk.piece + chunk.run - 1);
  return text(name(chunk.buffer), " ", chunk.piece, last);
}

class Validator {
 public:
  explicit Validator(const Program& program) : program_(program) {}

  std::vector<Problem> run() {
    for (int rank = 0; rank < program_.ranks; ++rank) check_held(rank);
    for (int rank = 0; rank < program_.ranks; ++rank) check_steps(rank);
    if (!problems_.empty()) return problems_;  // what follows relies on chunks that exist
    for (int rank = 0; rank < program_.ranks; ++rank) {
      check_order(rank, false);
      if (program_.operation != Operation::all_to_all) check_order(rank, true);
    }
    check_messages();
    if (reduces(program_.operation) == (program_.rounding == Rounding::none)) {
      problems_.push_back(
          {"rounding", std::string(name(program_.rounding)), text("does not go with ", name(program_.operation)), ""});
    }
    return problems_;
  }

 private:
  const std::vector<Step>& steps(int rank) const { return program_.steps_by_rank[static_cast<size_t>(rank)]; }

  void report(int rank, const Step& step, const std::string& rule) {
    problems_.push_back({text("rank ", rank), text("round ", step.round, ": ", collective::to_string(step)), rule, ""});
  }

  void check_held(int rank) {
    for (const Buffer buffer : {Buffer::input, Buffer::output}) {
      if (program_.held(rank, buffer) == defined(program_, rank, buffer)) continue;
      problems_.push_back({text("rank ", rank), std::string(name(buffer)), "holds other pieces than defined", ""});
    }
  }

  bool exists(int rank, const Chunk& chunk) const {
    const Held& held = program_.held(rank, chunk.buffer);
    const int slot = held.slot(chunk.piece);
    return slot >= 0 && chunk.run >= 1 && slot + chunk.run <= held.count;
  }

  void check_steps(int rank) {
    int round = 0;
    for (const Step& step : steps(rank)) {
      if (step.round < round || step.round >= program_.rounds) report(rank, step, "is out of the order of rounds");
      round = step.round;
      const bool peerless = step.kind == Kind::copy;
      if (!peerless && (step.peer < 0 || step.peer >= program_.ranks || step.peer == rank)) {
        report(rank, step, "has no such peer");
      }
      if (has_source(step) && !exists(rank, step.source)) report(rank, step, "reads pieces that are not there");
      if (has_target(step) && !exists(rank, step.target)) report(rank, step, "writes pieces that are not there");
      if (has_target(step) && step.target.buffer == Buffer::input) report(rank, step, "writes input");
      if (has_source(step) && has_target(step) && !same_pieces(rank, step.source, rank, step.target)) {
        report(rank, step, "puts pieces in the place of others");
      }
      if (step.kind == Kind::receive_reduce && !reduces(program_.operation)) report(rank, step, "adds");
    }
  }

  std::vector<int> pieces(int rank, const Chunk& chunk) const {
    std::vector<int> result;
    for (int i = 0; i < chunk.run; ++i) {
      result.push_back(chunk.piece + i * program_.held(rank, chunk.buffer).stride);
    }
    return result;
  }

  bool same_pieces(int rank, const Chunk& chunk, int other_rank, const Chunk& other) const {
    return pieces(rank, chunk) == pieces(other_rank, other);
  }

  // The memory of a chunk. In place, what input and output both hold is output's.
  std::set<Place> places(int rank, const Chunk& chunk, bool in_place) const {
    std::set<Place> result;
    for (const int piece : pieces(rank, chunk)) {
      const bool shared = chunk.buffer == Buffer::input && program_.held(rank, Buffer::output).slot(piece) >= 0;
      result.insert({in_place && shared ? Buffer::output : chunk.buffer, piece});
    }
    return result;
  }

  // Reading and writing, inside a round and from one to the next.
  void check_order(int rank, bool in_place) {
    std::set<Place> written;
    const Held& input = program_.held(rank, Buffer::input);
    if (input.count > 0) written = places(rank, {Buffer::input, input.first, input.count}, in_place);
    std::set<Place> overwritten;  // input that output has replaced
    const std::vector<Step>& all = steps(rank);
    for (size_t first = 0; first < all.size();) {
      size_t end = first;
      while (end < all.size() && all[end].round == all[first].round) ++end;
      check_round(rank, {all.data() + first, end - first}, in_place, written, overwritten);
      for (size_t i = first; i < end; ++i) {
        if (!has_target(all[i])) continue;
        for (const Place& place : places(rank, all[i].target, in_place)) {
          written.insert(place);
          if (place.first == Buffer::output) overwritten.insert({Buffer::input, place.second});
        }
      }
      first = end;
    }
    for (const int piece : pieces(rank, {Buffer::output, program_.held(rank, Buffer::output).first,
                                         program_.held(rank, Buffer::output).count})) {
      if (written.count({Buffer::output, piece}) != 0) continue;
      problems_.push_back({text("rank ", rank), text("output ", piece), "is never written", ""});
    }
  }

  void check_round(int rank, std::span<const Step> round, bool in_place, const std::set<Place>& written,
                   const std::set<Place>& overwritten) {
    std::set<Place> added;                // what receive_reduce of this round has written so far
    std::map<Place, const Step*> plain;   // what receive and copy write
    std::map<Place, const Step*> others;  // what any step touches, reductions into what is sent aside
    for (const Step& step : round) {
      const bool moves_nothing =
          step.kind == Kind::copy && places(rank, step.source, in_place) == places(rank, step.target, in_place);
      if (moves_nothing) continue;
      if (has_source(step)) {
        const std::set<Place> sources = places(rank, step.source, in_place);
        const bool joins = step.kind == Kind::receive_reduce && step.source == step.target;
        for (const Place& place : sources) {
          if (written.count(place) == 0 && !(joins && added.count(place) != 0)) report(rank, step, "reads too early");
          if (step.source.buffer == Buffer::input && in_place &&
              overwritten.count({Buffer::input, place.second}) != 0) {
            report(rank, step, "reads input after output took its place");
          }
          if (plain.count(place) != 0) report(rank, step, "reads what its round writes");
          if (!joins && added.count(place) != 0 && step.kind != Kind::send)
            report(rank, step, "reads a sum of its round");
          others.emplace(place, &step);
        }
      }
      if (!has_target(step)) continue;
      for (const Place& place : places(rank, step.target, in_place)) {
        const bool reduction = step.kind == Kind::receive_reduce;
        const bool clash = reduction ? plain.count(place) != 0 : others.count(place) != 0 || added.count(place) != 0;
        if (clash) report(rank, step, "writes what its round uses");
        if (reduction) {
          added.insert(place);
        } else {
          plain.emplace(place, &step);
          others.emplace(place, &step);
        }
      }
    }
  }

  void check_messages() {
    std::map<std::pair<int, int>, std::vector<const Step*>> sends, receives;  // by from, to
    for (int rank = 0; rank < program_.ranks; ++rank) {
      for (const Step& step : steps(rank)) {
        if (step.kind == Kind::copy) continue;
        if (step.kind == Kind::send) {
          sends[{rank, step.peer}].push_back(&step);
        } else {
          receives[{step.peer, rank}].push_back(&step);
        }
      }
    }
    for (const auto& [pair, sent] : sends) check_channel(pair.first, pair.second, sent, receives[pair]);
    for (const auto& [pair, received] : receives) {
      const size_t matched = sends.count(pair) == 0 ? 0 : sends.at(pair).size();
      for (size_t i = matched; i < received.size(); ++i) report(pair.second, *received[i], "is never sent");
    }
  }

  void check_channel(int from, int to, const std::vector<const Step*>& sent, const std::vector<const Step*>& received) {
    for (size_t i = 0; i < sent.size(); ++i) {
      if (i >= received.size()) {
        report(from, *sent[i], "is never received");
      } else if (sent[i]->round != received[i]->round) {
        report(from, *sent[i], text("is received in round ", received[i]->round));
      } else if (!same_pieces(from, sent[i]->source, to, received[i]->target)) {
        report(from, *sent[i], text("is received as ", to_string(received[i]->target)));
      } else if (program_.rounding == Rounding::once && received[i]->kind == Kind::receive_reduce &&
                 sent[i]->source.buffer != Buffer::input) {
        report(from, *sent[i], "is a sum of sums where sums are to be rounded once");
      }
    }
  }

  const Program& program_;
  std::vector<Problem> problems_;
};

}  // namespace

std::string to_string(const Step& step) {
  switch (step.kind) {
    case Kind::send:
      return text("send ", to_string(step.source), " to ", step.peer);
    case Kind::receive:
      return text("receive ", to_string(step.target), " from ", step.peer);
    case Kind::receive_reduce:
      return text("reduce ", to_string(step.source), " and what ", step.peer, " sends into ", to_string(step.target));
    case Kind::copy:
      return text("copy ", to_string(step.source), " to ", to_string(step.target));
  }
  return {};
}

Held defined(const Program& program, int rank, Buffer buffer) {
  using enum Operation;
  const Held all{0, 1, program.pieces};
  const Held own{rank, 1, 1};
  const Held at_root = rank == program.root ? all : Held{};
  const bool input = buffer == Buffer::input;
  switch (program.operation) {
    case broadcast:
      return input ? at_root : all;
    case reduce:
      return input ? all : at_root;
    case all_reduce:
      return all;
    case reduce_scatter:
      return input ? all : own;
    case all_gather:
      return input ? own : all;
    case scatter:
      return input ? at_root : own;
    case gather:
      return input ? own : at_root;
    case all_to_all:
      return input ? Held{rank * program.ranks, 1, program.ranks} : Held{rank, program.ranks, program.ranks};
  }
  return {};
}

std::vector<Problem> validate(const Program& program) {
  return Validator(program).run();
}

}  // namespace lockstep::collective
