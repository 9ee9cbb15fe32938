#include "lockstep/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/schedule/dependencies.h"
#include "lockstep/schedule/passes.h"

namespace lockstep::simulate {

namespace {

using schedule::Action;
using schedule::Table;
using Kind = Action::Kind;

// A span that something may wait for, and when it lets go.
struct Cause {
  double time = 0;
  int span = -1;
};

class Engine {
 public:
  Engine(const Table& table, const Costs& costs)
      : table_(table),
        costs_(costs),
        index_(table),
        has_communication_(schedule::has_communication(table)),
        ranks_(static_cast<size_t>(table.ranks)) {
    result_.ranks = table.ranks;
    result_.busy.resize(ranks_.size());
    result_.list_of_rank.resize(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].span_of_position.resize(table.actions_by_rank[r].size(), -1);
  }

  Simulation run() {
    // A rank that is stuck is tried again when another has moved; what it computes does not depend on that order.
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < table_.ranks; ++rank) {
        while (const Action* action = current(rank)) {
          if (!take(rank, *action)) break;
          moved = true;
        }
      }
    }
    for (int rank = 0; rank < table_.ranks; ++rank) {
      const Action* action = current(rank);
      if (action == nullptr) continue;
      throw InvalidArgument(text("rank ", rank, " waits for ever at ", to_string(*action), "; validate says for what"));
    }
    for (const Span& span : result_.spans) result_.makespan = std::max(result_.makespan, span.end);
    return std::move(result_);
  }

 private:
  struct Rank {
    size_t next = 0;
    Cause free;                      // from when on it can compute
    Cause unshard, reduce;           // from when on it can do these, beside computing
    std::map<int, Cause> unsharded;  // by stage
    std::vector<int> span_of_position;
  };

  Rank& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  const Action* current(int rank) {
    const auto& actions = table_.actions_by_rank[static_cast<size_t>(rank)];
    return state(rank).next < actions.size() ? &actions[state(rank).next] : nullptr;
  }

  static void wait_for(Cause& begin, const Cause& other) {
    if (other.time > begin.time) begin = other;
  }

  // The span of an action that is done.
  std::optional<Cause> done(const Action& action) {
    const auto place = index_.find(action);
    if (!place) return std::nullopt;
    const int span = state(place->rank).span_of_position[static_cast<size_t>(place->position)];
    if (span < 0) return std::nullopt;
    return Cause{result_.spans[static_cast<size_t>(span)].end, span};
  }

  // When the action's needs are there; nothing when they are not yet.
  std::optional<Cause> needs_met(int rank, const Action& action) {
    Cause begin = state(rank).free;
    if (action.kind == Kind::unshard) wait_for(begin, state(rank).unshard);
    for (const Action& need : schedule::needs_on_rank(action, index_)) {
      const auto cause = done(need);
      if (!cause) return std::nullopt;
      wait_for(begin, *cause);
    }
    if (const auto message = schedule::message_to(action, index_)) {
      const auto arrival = arrivals_.find(key(message->send));
      if (arrival == arrivals_.end()) return std::nullopt;
      wait_for(begin, arrival->second);
    }
    const auto unsharded = state(rank).unsharded.find(action.stage);
    if (schedule::is_compute(action.kind) && unsharded != state(rank).unsharded.end()) {
      wait_for(begin, unsharded->second);
    }
    return begin;
  }

  bool take(int rank, const Action& action) {
    if (costs_.mode == TransferMode::block && schedule::is_communication(action.kind)) return meet(rank, action);
    const auto begin = needs_met(rank, action);
    if (!begin) return false;
    if (action.kind == Kind::reduce_gradient) return reduce(rank, action);
    const bool is_send = action.kind == Kind::send_activation || action.kind == Kind::send_gradient;
    const double duration = schedule::is_communication(action.kind) ? 0 : costs_.duration(action);
    const Cause end = add_to_list(rank, action, *begin, duration);
    if (action.kind == Kind::unshard) {
      state(rank).unshard = state(rank).unsharded[action.stage] = end;
    } else {
      state(rank).free = end;
    }
    if (is_send) send(rank, action, end);
    if (!has_communication_) {
      if (const auto message = schedule::message_from(action, table_)) send(rank, message->send, end);
    }
    return true;
  }

  // Began with the last action that adds to the stage's gradient, or when the reduction before it was through.
  bool reduce(int rank, const Action& action) {
    const Span* last = nullptr;
    for (const Action& need : schedule::needs_on_rank(action, index_)) {
      const Span& span = result_.spans[static_cast<size_t>(done(need)->span)];
      if (last == nullptr || span.end > last->end) last = &span;
    }
    Cause begin = last == nullptr ? state(rank).free : Cause{last->begin, last->cause};
    const double earliest_end = last == nullptr ? 0 : last->end;
    wait_for(begin, state(rank).reduce);
    const double duration = std::max(costs_.duration(action), earliest_end - begin.time);
    state(rank).reduce = add_to_list(rank, action, begin, duration);
    wait_for(state(rank).free, state(rank).reduce);
    return true;
  }

  // A send and a receive that wait for each other.
  bool meet(int rank, const Action& action) {
    const int peer = schedule::peer_of(action, table_);
    const Action other = schedule::other_end(action);
    const Action* at_peer = current(peer);
    if (at_peer == nullptr || *at_peer != other) return false;
    Cause begin = state(rank).free;
    wait_for(begin, state(peer).free);
    for (const auto& [side, end_of] : {std::pair(rank, action), std::pair(peer, other)}) {
      const Cause mine = state(side).free.time >= begin.time ? state(side).free : begin;
      const Cause end = add_to_list(side, end_of, mine, costs_.transfer);
      state(side).free = end;
      if (end_of.kind == Kind::send_activation || end_of.kind == Kind::send_gradient) arrivals_[key(end_of)] = end;
    }
    return true;
  }

  Cause add_span(int rank, const Action& action, const Cause& begin, double duration) {
    result_.spans.push_back({action, rank, begin.time, begin.time + duration, begin.span});
    return {begin.time + duration, static_cast<int>(result_.spans.size()) - 1};
  }

  Cause add_to_list(int rank, const Action& action, const Cause& begin, double duration) {
    const Cause end = add_span(rank, action, begin, duration);
    state(rank).span_of_position[state(rank).next++] = end.span;
    result_.list_of_rank[static_cast<size_t>(rank)].push_back(end.span);
    if (schedule::is_compute(action.kind)) result_.busy[static_cast<size_t>(rank)] += duration;
    return end;
  }

  void send(int rank, const Action& action, Cause begin) {
    Cause& channel = channels_[{rank, schedule::peer_of(action, table_)}];
    if (costs_.mode == TransferMode::link) wait_for(begin, channel);
    channel = add_span(rank, action, begin, costs_.transfer);
    result_.messages.push_back(channel.span);
    arrivals_[key(action)] = channel;
  }

  static uint64_t key(const Action& send) {
    return static_cast<uint64_t>(send.kind) << 56 | static_cast<uint64_t>(send.stage) << 28 |
           static_cast<uint64_t>(send.microbatch);
  }

  const Table& table_;
  const Costs& costs_;
  const schedule::Index index_;
  const bool has_communication_;
  Simulation result_;
  std::vector<Rank> ranks_;
  std::unordered_map<uint64_t, Cause> arrivals_;  // of messages, by their send
  std::map<std::pair<int, int>, Cause> channels_;
};

}  // namespace

std::string_view name(TransferMode mode) {
  constexpr std::string_view kNames[] = {"async", "link", "block"};
  return kNames[static_cast<size_t>(mode)];
}

std::function<double(const Action&)> per_stage(const StageTimes& times, int stages) {
  const auto check = [&](std::string_view field, const std::vector<double>& list) {
    if (list.size() > 1 && list.size() != static_cast<size_t>(stages)) {
      throw InvalidArgument(Problem{std::string(field), join(list, ","),
                                    text("must be one time, or one for each of ", stages, " stages"), ""}
                                .message());
    }
    for (const double time : list) {
      if (!std::isfinite(time) || time < 0)
        throw InvalidArgument(Problem{std::string(field), text(time), "must be a time, at least 0", "0"}.message());
    }
  };
  check("forward", times.forward);
  check("backward", times.backward);
  check("input_grad", times.input_grad);
  check("weight_grad", times.weight_grad);
  check("recompute", times.recompute);
  return [times](const Action& action) -> double {
    const auto of = [&](const std::vector<double>& list) {
      return list.empty() ? 0.0 : list[list.size() == 1 ? 0 : static_cast<size_t>(action.stage)];
    };
    switch (action.kind) {
      case Kind::forward:
        return of(times.forward);
      case Kind::recompute:
        return of(times.recompute);
      case Kind::backward:
        return of(times.backward);
      case Kind::input_grad:
        return of(times.input_grad);
      case Kind::weight_grad:
        return of(times.weight_grad);
      default:
        return 0;
    }
  };
}

Simulation simulate(const Table& table, const Costs& costs) {
  if (costs.mode == TransferMode::block && !schedule::has_communication(table)) {
    return Engine(schedule::add_communication(table), costs).run();
  }
  return Engine(table, costs).run();
}

}  // namespace lockstep::simulate
