// The pass that adds sends and receives: runs the table in time, with a guess at how long actions take, and writes down
// each message at the moment it leaves, in both ranks' lists.
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/schedule/dependencies.h"
#include "lockstep/schedule/passes.h"

namespace lockstep::schedule {

namespace {

using Kind = Action::Kind;

class Communication {
 public:
  explicit Communication(const Table& table)
      : table_(table), index_(table), result_(table), ranks_(table.actions_by_rank.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      result_.actions_by_rank[r].clear();
      ranks_[r].done.resize(table.actions_by_rank[r].size());
    }
  }

  Table add() {
    for (int now = 0;;) {
      for (int rank = 0; rank < table_.ranks; ++rank) start(rank, now);
      if (ends_.empty()) break;
      now = ends_.begin()->first;
      while (!ends_.empty() && ends_.begin()->first == now) {
        const int rank = ends_.begin()->second;
        ends_.erase(ends_.begin());
        finish(rank);
      }
    }
    for (int rank = 0; rank < table_.ranks; ++rank) {
      if (next_unit(rank).empty()) continue;
      throw InvalidArgument(text("rank ", rank, " cannot go on at ", to_string(next_unit(rank).front()),
                                 ", so communication cannot be added; validate says why"));
    }
    return std::move(result_);
  }

 private:
  struct Rank {
    size_t next = 0;
    bool busy = false;
    std::vector<bool> done;
  };

  const std::vector<Action>& list(int rank) const { return table_.actions_by_rank[static_cast<size_t>(rank)]; }
  std::vector<Action>& written(int rank) { return result_.actions_by_rank[static_cast<size_t>(rank)]; }
  Rank& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  // What the rank does next: an action or the two of a pair; nothing at the end.
  std::span<const Action> next_unit(int rank) {
    const size_t next = state(rank).next, left = list(rank).size() - next;
    const bool pair = left > 1 && list(rank)[next].overlaps_next;
    return std::span(list(rank)).subspan(next, std::min<size_t>(left, pair ? 2 : 1));
  }

  bool is_done(const Action& action) {
    const auto place = index_.find(action);
    return place && state(place->rank).done[static_cast<size_t>(place->position)];
  }

  bool is_ready(std::span<const Action> unit) {
    for (const Action& action : unit) {
      const auto message = message_to(action, index_);
      if (message && !is_done(message->producer)) return false;
      for (const Action& need : needs_on_rank(action, index_)) {
        if (!is_done(need) && need != unit.front()) return false;
      }
    }
    return true;
  }

  static int duration(const Action& action) { return action.kind == Kind::backward ? 2 : 1; }

  void start(int rank, int now) {
    while (!state(rank).busy && !next_unit(rank).empty()) {
      const auto unit = next_unit(rank);
      if (!is_ready(unit)) return;
      int end = now;
      for (const Action& action : unit) {
        written(rank).push_back(action);
        if (is_compute(action.kind)) end += duration(action);
      }
      state(rank).busy = true;
      if (end == now) {
        finish(rank);
      } else {
        ends_.insert({end, rank});
      }
    }
  }

  void finish(int rank) {
    const auto unit = next_unit(rank);
    for (const Action& action : unit) {
      state(rank).done[state(rank).next++] = true;
      if (const auto message = message_from(action, table_)) {
        written(rank).push_back(message->send);
        written(table_.rank_of_stage[static_cast<size_t>(message->receive.stage)]).push_back(message->receive);
      }
    }
    state(rank).busy = false;
  }

  const Table& table_;
  const Index index_;
  Table result_;
  std::vector<Rank> ranks_;
  std::set<std::pair<int, int>> ends_;  // time, rank
};

}  // namespace

Table add_communication(const Table& table) {
  if (has_communication(table)) throw InvalidArgument("the table has sends and receives already");
  return Communication(table).add();
}

}  // namespace lockstep::schedule
