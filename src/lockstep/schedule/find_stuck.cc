// Runs a table without time: each rank goes on as long as it can.
#include "lockstep/schedule/dependencies.h"
#include "lockstep/schedule/validate.h"

namespace lockstep::schedule {

namespace {

using Kind = Action::Kind;

class Run {
 public:
  Run(const Table& table, Sends sends)
      : table_(table),
        index_(table),
        blocking_(sends == Sends::blocking),
        has_communication_(has_communication(table)),
        next_(static_cast<size_t>(table.ranks), 0) {}

  std::vector<Stuck> run() {
    while (round()) {
    }
    std::vector<Stuck> stuck;
    for (int rank = 0; rank < table_.ranks; ++rank) {
      if (const Action* action = current(rank)) stuck.push_back({rank, *action, *missing(*action)});
    }
    return stuck;
  }

 private:
  bool round() {
    bool progress = false;
    for (int rank = 0; rank < table_.ranks; ++rank) {
      for (const Action* action = current(rank); action != nullptr && !missing(*action); action = current(rank)) {
        if (blocking_ && is_communication(action->kind)) ++next(peer_of(*action, table_));
        ++next(rank);
        progress = true;
      }
    }
    return progress;
  }

  int& next(int rank) { return next_[static_cast<size_t>(rank)]; }

  const Action* current(int rank) {
    const auto& actions = table_.actions_by_rank[static_cast<size_t>(rank)];
    const auto position = static_cast<size_t>(next(rank));
    return position < actions.size() ? &actions[position] : nullptr;
  }

  bool is_done(const Action& action) {
    const auto place = index_.find(action);
    return place && place->position < next(place->rank);
  }

  // What the action waits for; nothing when it can be done now.
  std::optional<Action> missing(const Action& action) {
    for (const Action& need : needs_on_rank(action, index_)) {
      if (!is_done(need)) return need;
    }
    if (const auto message = message_to(action, index_)) {
      const Action& sign = has_communication_ ? message->send : message->producer;
      if (!is_done(sign)) return sign;
    }
    if (blocking_ && is_communication(action.kind)) {
      const Action* at_peer = current(peer_of(action, table_));
      if (at_peer == nullptr || *at_peer != other_end(action)) return other_end(action);
    }
    return std::nullopt;
  }

  const Table& table_;
  const Index index_;
  const bool blocking_, has_communication_;
  std::vector<int> next_;
};

}  // namespace

std::vector<Stuck> find_stuck(const Table& table, Sends sends) {
  return Run(table, sends).run();
}

}  // namespace lockstep::schedule
