#include "lockstep/schedule/validate.h"

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/schedule/dependencies.h"
#include "lockstep/schedule/in_flight.h"

namespace lockstep::schedule {

namespace {

using Kind = Action::Kind;

constexpr size_t kMostProblems = 100;

bool has_other_end(const Action& communication, int stages) {
  const int other = other_end(communication).stage;
  return other >= 0 && other < stages;
}

// The table's lists and stages are there.
std::vector<Problem> check_form(const Table& table) {
  if (table.ranks < 1 || table.actions_by_rank.size() != static_cast<size_t>(table.ranks)) {
    return {{"ranks", text(table.ranks),
             text("there are ", table.actions_by_rank.size(), " lists of actions; there must be one per rank"),
             text(std::max<size_t>(table.actions_by_rank.size(), 1))}};
  }
  if (table.microbatches < 1) return {{"microbatches", text(table.microbatches), "must be at least 1", "1"}};
  if (table.rank_of_stage.empty()) return {{"stages", "0", "must be at least 1", "1"}};
  for (int stage = 0; stage < table.stages(); ++stage) {
    const int rank = table.rank_of_stage[static_cast<size_t>(stage)];
    if (rank < 0 || rank >= table.ranks) {
      return {{text("stage ", stage), rank < 0 ? "no rank" : text("rank ", rank),
               text("every stage up to ", table.stages() - 1, " must be on one of the ranks 0 to ", table.ranks - 1),
               ""}};
    }
  }
  return {};
}

// Actions one by one: numbers in range, on the right rank, not twice.
class Alone {
 public:
  explicit Alone(const Table& table) : table_(table) {}

  std::vector<Problem> check() {
    for (int rank = 0; rank < table_.ranks; ++rank) {
      const auto& actions = table_.actions_by_rank[static_cast<size_t>(rank)];
      std::set<Action> seen;
      for (size_t i = 0; i < actions.size() && problems_.size() < kMostProblems; ++i) {
        const std::string rule = broken_rule(actions, i, rank, seen);
        if (!rule.empty()) problems_.push_back({text("rank ", rank), to_string(actions[i]), rule, ""});
      }
    }
    return problems_;
  }

 private:
  std::string broken_rule(const std::vector<Action>& actions, size_t i, int rank, std::set<Action>& seen) const {
    const Action& action = actions[i];
    const bool is_step = action.kind == Kind::optimizer_step;
    if (is_step && action.stage != -1) return "the step is the rank's and has no stage";
    if (!is_step && (action.stage < 0 || action.stage >= table_.stages())) {
      return text("stages are numbered from 0 to ", table_.stages() - 1);
    }
    if (is_per_microbatch(action.kind) && (action.microbatch < 0 || action.microbatch >= table_.microbatches)) {
      return text("micro-batches are numbered from 0 to ", table_.microbatches - 1);
    }
    if (!is_per_microbatch(action.kind) && action.microbatch != -1)
      return text(name(action.kind), " belongs to no micro-batch");
    if (!is_step && table_.rank_of_stage[static_cast<size_t>(action.stage)] != rank) return elsewhere(action);
    if (is_communication(action.kind)) {
      if (!has_other_end(action, table_.stages())) return "there is no stage at the other end";
      if (peer_of(action, table_) == rank)
        return text(to_string(other_end(action)), ", the other end, is on the same rank");
    }
    const bool may_repeat = action.kind == Kind::unshard || action.kind == Kind::reshard;
    if (!seen.insert(action).second && !may_repeat) return "stands twice in the list";
    return action.overlaps_next ? broken_pair(actions, i) : "";
  }

  std::string elsewhere(const Action& action) const {
    const int owner = table_.rank_of_stage[static_cast<size_t>(action.stage)];
    const auto& actions = table_.actions_by_rank[static_cast<size_t>(owner)];
    const auto other = std::ranges::find(actions, action.stage, &Action::stage);
    return text("stage ", action.stage, " is on rank ", owner,
                other == actions.end() ? "" : ", where " + to_string(*other) + " stands");
  }

  static std::string broken_pair(const std::vector<Action>& actions, size_t i) {
    if (i + 1 == actions.size()) return "is to overlap the action after it, and there is none";
    const Action& next = actions[i + 1];
    const bool right = actions[i].kind == Kind::forward && makes_input_gradient(next.kind) && !next.overlaps_next;
    return right ? "" : text("is to overlap ", to_string(next), "; only a forward can, with a backward after it");
  }

  const Table& table_;
  std::vector<Problem> problems_;
};

// Actions together: what must be there, and in which order.
class Together {
 public:
  Together(const Table& table, const Rules& rules)
      : table_(table), rules_(rules), index_(table), has_communication_(has_communication(table)) {}

  std::vector<Problem> check() {
    for (int stage = 0; stage < table_.stages(); ++stage) {
      for (int m = 0; m < table_.microbatches && problems_.size() < kMostProblems; ++m) check_microbatch(stage, m);
    }
    for (int rank = 0; rank < table_.ranks; ++rank) {
      check_order(rank);
      check_sharding(rank);
      check_step(rank);
    }
    return problems_;
  }

 private:
  const std::vector<Action>& list(int rank) const { return table_.actions_by_rank[static_cast<size_t>(rank)]; }
  int rank_of(const Action& action) const { return table_.rank_of_stage[static_cast<size_t>(action.stage)]; }

  void problem(int rank, const Action& action, const std::string& rule) {
    if (problems_.size() < kMostProblems) problems_.push_back({text("rank ", rank), to_string(action), rule, ""});
  }
  void require(const Action& action, const Action& needed_by) {
    if (!index_.has(action)) problem(rank_of(action), action, text("is missing; ", to_string(needed_by), " needs it"));
  }

  // Forward, and a backward or its two halves, and the messages to others if the table has any.
  void check_microbatch(int stage, int microbatch) {
    const auto of = [&](Kind kind) { return Action{kind, stage, microbatch}; };
    const Action whole = of(Kind::backward), input = of(Kind::input_grad), weight = of(Kind::weight_grad);
    const bool split = index_.has(input) || index_.has(weight);
    require(of(Kind::forward), split ? input : whole);
    if (split) {
      require(input, weight);
      require(weight, input);
      if (index_.has(whole))
        problem(rank_of(whole), whole, text("is done already by ", to_string(index_.has(input) ? input : weight)));
    } else {
      require(whole, of(Kind::forward));
    }
    if (!has_communication_) return;
    for (const Action& producer : {of(Kind::forward), split ? input : whole}) {
      if (const auto message = message_from(producer, table_)) {
        require(message->send, message->receive);
        require(message->receive, message->send);
      }
    }
  }

  void check_order(int rank) {
    for (const Action& action : list(rank)) {
      if (action.stage < 0) continue;
      const int position = index_.find(action)->position;
      for (const Action& need : needs_on_rank(action, index_)) {
        const auto place = index_.find(need);
        if (place->rank == rank && place->position > position)
          problem(rank, action, text("stands before ", to_string(need)));
      }
    }
  }

  // Where a stage is unsharded at all, it is whole whenever it computes.
  void check_sharding(int rank) {
    std::map<int, bool> whole;
    for (const Action& action : list(rank)) {
      if (action.kind == Kind::unshard) whole[action.stage] = false;
    }
    for (const Action& action : list(rank)) {
      const auto stage = whole.find(action.stage);
      const Action unshard{Kind::unshard, action.stage}, reshard{Kind::reshard, action.stage};
      if (action.kind == Kind::reshard && (stage == whole.end() || !stage->second)) {
        problem(rank, action, text("needs ", to_string(unshard), " before it"));
      } else if (action.kind == Kind::unshard && stage->second) {
        problem(rank, action, text("stands again before ", to_string(reshard)));
      } else if (is_compute(action.kind) && stage != whole.end() && !stage->second) {
        problem(rank, action, text("needs ", to_string(unshard), " before it"));
      }
      if (action.kind == Kind::unshard || action.kind == Kind::reshard) stage->second = action.kind == Kind::unshard;
      if (problems_.size() >= kMostProblems) return;
    }
    for (const auto& [stage, is_whole] : whole) {
      const Action unshard{Kind::unshard, stage}, reshard{Kind::reshard, stage};
      if (is_whole) problem(rank, unshard, text("is never followed by ", to_string(reshard)));
    }
  }

  void check_step(int rank) {
    const Action step{Kind::optimizer_step};
    const auto& actions = list(rank);
    const auto at = std::ranges::find(actions, step);
    if (at == actions.end()) {
      if (rules_.whole_step) problem(rank, step, "is missing");
      return;
    }
    for (auto later = at + 1; later != actions.end(); ++later) {
      if (later->kind != Kind::reshard) problem(rank, step, text("stands before ", to_string(*later)));
    }
    for (int stage = 0; stage < table_.stages(); ++stage) {
      const Action reduce{Kind::reduce_gradient, stage};
      if (rules_.whole_step && rank_of(reduce) == rank) require(reduce, step);
    }
  }

  const Table& table_;
  const Rules& rules_;
  const Index index_;
  const bool has_communication_;
  std::vector<Problem> problems_;
};

// On each channel the n-th message sent must be the n-th that is received.
std::vector<Problem> check_channels(const Table& table) {
  std::map<std::pair<int, int>, std::vector<Action>> sent, received;  // by sender and receiver
  for (int rank = 0; rank < table.ranks; ++rank) {
    for (const Action& action : table.actions_by_rank[static_cast<size_t>(rank)]) {
      if (!is_communication(action.kind)) continue;
      const int peer = peer_of(action, table);
      const bool is_send = action.kind == Kind::send_activation || action.kind == Kind::send_gradient;
      if (is_send) {
        sent[{rank, peer}].push_back(action);
      } else {
        received[{peer, rank}].push_back(action);
      }
    }
  }
  std::vector<Problem> problems;
  for (const auto& [ranks, sends] : sent) {
    const auto& receives = received[ranks];
    for (size_t n = 0; n < std::min(sends.size(), receives.size()); ++n) {
      if (other_end(sends[n]) == receives[n]) continue;
      problems.push_back({text("rank ", ranks.second), to_string(receives[n]),
                          text("would get message ", n, " from rank ", ranks.first, ", which is ", to_string(sends[n])),
                          ""});
      break;
    }
  }
  return problems;
}

std::vector<Problem> check_progress(const Table& table, Sends sends) {
  std::vector<Problem> problems;
  const auto stuck = find_stuck(table, sends);
  const Index index(table);
  for (const Stuck& at : stuck) {
    const auto place = index.find(at.waits_for);
    const auto other = std::ranges::find_if(stuck, [&](const Stuck& s) { return place && s.rank == place->rank; });
    problems.push_back(
        {text("rank ", at.rank), to_string(at.action),
         text("waits for ever for ", to_string(at.waits_for),
              other == stuck.end() ? "" : text(", as rank ", other->rank, " stands at ", to_string(other->action)),
              sends == Sends::blocking ? " (blocking sends)" : ""),
         ""});
  }
  return problems;
}

std::vector<Problem> check_memory(const Table& table, const std::vector<double>& bounds) {
  std::vector<Problem> problems;
  const InFlight in_flight(table, {});
  for (size_t rank = 0; rank < std::min(bounds.size(), table.actions_by_rank.size()); ++rank) {
    const auto stages = std::ranges::count(table.rank_of_stage, static_cast<int>(rank));
    std::vector<Action> alive;
    for (const Action& action : table.actions_by_rank[rank]) {
      const auto [comes, goes] = in_flight.effect(action);
      if (comes > 0) alive.push_back(action);
      const double count = static_cast<double>(alive.size()) / static_cast<double>(stages);
      if (count > bounds[rank] * (1 + 1e-12)) {
        problems.push_back({text("rank ", rank), to_string(action),
                            text("makes ", count, " micro-batches in flight, above ", bounds[rank], "; ",
                                 to_string(alive.front()), " is still alive"),
                            ""});
        break;
      }
      if (goes > 0) std::erase(alive, Action{Kind::forward, action.stage, action.microbatch});
    }
  }
  return problems;
}

}  // namespace

// Each check relies on those before it.
std::vector<Problem> validate(const Table& table, const Rules& rules) {
  if (auto problems = check_form(table); !problems.empty()) return problems;
  if (auto problems = Alone(table).check(); !problems.empty()) return problems;
  if (auto problems = Together(table, rules).check(); !problems.empty()) return problems;
  if (auto problems = check_channels(table); !problems.empty()) return problems;
  if (auto problems = check_progress(table, rules.sends); !problems.empty()) return problems;
  return check_memory(table, rules.in_flight_bound);
}

}  // namespace lockstep::schedule
