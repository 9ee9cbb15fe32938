// Writes programs. An algorithm says who passes which pieces to whom in each round; the builder knows in which buffer
// each rank has the newest value of a piece, chooses targets, cuts runs into messages, and in the end copies into
// output what is not there yet. So phases compose: what one leaves is what the next one starts from.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/collective/program.h"

namespace lockstep::collective {

// Pieces first, first + 1, ...
struct Run {
  int first = 0, count = 0;
};
using Pieces = std::vector<Run>;

class Builder {
 public:
  struct Options {
    Operation operation;
    std::string_view algorithm;
    Rounding rounding;  // none for operations that do not reduce
    int pieces = 1;     // operations on a whole vector only; the others' pieces follow from the ranks
  };
  Builder(const Shape& shape, const Options& options);

  int ranks() const { return program_.ranks; }
  int root() const { return program_.root; }
  Run all() const { return {0, program_.pieces}; }

  // In the current round; both read what `from` had before the round. One message unless the run is in several places.
  void move(int from, int to, Run run) { pass(Step::Kind::receive, from, to, run); }
  void move(int from, int to, const Pieces& pieces);
  void reduce(int from, int to, Run run) { pass(Step::Kind::receive_reduce, from, to, run); }
  void reduce(int from, int to, const Pieces& pieces);
  // Copies a run of `rank` to where it collects (output, or else scratch), so that it leaves in one message with what
  // is collected beside it.
  void collect(int rank, Run run);
  void collect(int rank, const Pieces& pieces);

  // A round in which nothing happened is none.
  void next_round();

  // Runs work(0), ..., work(count - 1), each from the current round on: they must concern different ranks. Ends after
  // the longest.
  template <typename Work>
  void side_by_side(int count, Work work) {
    const int start = round_;
    int end = start;
    for (int i = 0; i < count; ++i) {
      LOCKSTEP_CHECK(arrivals_.empty(), "side-by-side work begins and ends between rounds");
      round_ = start;
      work(i);
      end = std::max(end, round_);
    }
    round_ = end;
  }

  Program finish();

 private:
  // Where a rank has the newest value of a piece.
  struct Place {
    std::optional<Buffer> now;   // before this round; none: not here
    std::optional<Buffer> next;  // after it, when it comes in this round
    int round = -1;              // in which it came last; -1: it is input
  };

  void pass(Step::Kind kind, int from, int to, Run run);
  void arrive(int rank, Run run, Buffer buffer);
  void append(int rank, const Step& step);
  Place& place(int rank, int piece);
  // Where a rank puts a run that comes: output when it holds all of it, else scratch, so that it can leave as one
  // again.
  Buffer goal(int rank, Run run) const;
  bool adjacent(int rank, Buffer buffer, int piece) const;
  void cut_scratch();

  Program program_;
  int round_ = 0;
  std::vector<std::vector<Place>> places_;     // [rank][piece]
  std::vector<std::pair<int, int>> arrivals_;  // rank, piece: of this round
};

}  // namespace lockstep::collective
