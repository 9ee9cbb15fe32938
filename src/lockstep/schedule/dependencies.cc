#include "lockstep/schedule/dependencies.h"

#include "lockstep/base/error.h"

namespace lockstep::schedule {

namespace {

using Kind = Action::Kind;

uint64_t key(const Action& action) {
  return static_cast<uint64_t>(action.kind) << 56 | static_cast<uint64_t>(action.stage + 1) << 28 |
         static_cast<uint64_t>(action.microbatch + 1);
}

Message activation_message(int from_stage, int microbatch) {
  return {{Kind::forward, from_stage, microbatch},
          {Kind::send_activation, from_stage, microbatch},
          {Kind::receive_activation, from_stage + 1, microbatch}};
}

Message gradient_message(const Action& producer) {
  return {producer,
          {Kind::send_gradient, producer.stage, producer.microbatch},
          {Kind::receive_gradient, producer.stage - 1, producer.microbatch}};
}

}  // namespace

Index::Index(const Table& table) : table_(table) {
  size_t count = 0;
  for (const auto& actions : table.actions_by_rank) count += actions.size();
  places_.reserve(count);
  for (int rank = 0; rank < table.ranks; ++rank) {
    int position = 0;
    for (const Action& action : table.actions_by_rank[static_cast<size_t>(rank)]) {
      if (action.stage >= 0) places_.emplace(key(action), Place{rank, position});
      ++position;
    }
  }
}

std::optional<Place> Index::find(const Action& action) const {
  const auto found = places_.find(key(action));
  if (found == places_.end()) return std::nullopt;
  return found->second;
}

Action input_gradient_of(int stage, int microbatch, const Index& index) {
  const Action half{Kind::input_grad, stage, microbatch};
  return index.has(half) ? half : Action{Kind::backward, stage, microbatch};
}

std::vector<Action> needs_on_rank(const Action& action, const Index& index) {
  const Table& table = index.table();
  std::vector<Action> needs;
  const auto need = [&](const Action& other) {
    if (index.has(other)) needs.push_back(other);
  };
  const auto of = [&](Kind kind) { return Action{kind, action.stage, action.microbatch}; };
  const int s = action.stage, m = action.microbatch;
  switch (action.kind) {
    case Kind::forward:
      if (s > 0 && table.same_rank(s - 1, s)) need({Kind::forward, s - 1, m});
      need(of(Kind::receive_activation));
      break;
    case Kind::recompute:
    case Kind::send_activation:
      need(of(Kind::forward));
      break;
    case Kind::backward:
    case Kind::input_grad:
      need(of(Kind::forward));
      need(of(Kind::recompute));
      if (s + 1 < table.stages() && table.same_rank(s + 1, s)) need(input_gradient_of(s + 1, m, index));
      need(of(Kind::receive_gradient));
      break;
    case Kind::weight_grad:
      need(of(Kind::input_grad));
      break;
    case Kind::send_gradient:
      need(input_gradient_of(s, m, index));
      break;
    case Kind::reduce_gradient:
      for (int microbatch = 0; microbatch < table.microbatches; ++microbatch) {
        need({Kind::backward, s, microbatch});
        need({Kind::weight_grad, s, microbatch});
      }
      break;
    default:
      break;
  }
  return needs;
}

std::optional<Message> message_to(const Action& action, const Index& index) {
  const Table& table = index.table();
  const int s = action.stage, m = action.microbatch;
  if (action.kind == Kind::forward && s > 0 && !table.same_rank(s - 1, s)) return activation_message(s - 1, m);
  if (makes_input_gradient(action.kind) && s + 1 < table.stages() && !table.same_rank(s + 1, s)) {
    return gradient_message(input_gradient_of(s + 1, m, index));
  }
  return std::nullopt;
}

std::optional<Message> message_from(const Action& action, const Table& table) {
  const int s = action.stage;
  if (action.kind == Kind::forward && s + 1 < table.stages() && !table.same_rank(s, s + 1)) {
    return activation_message(s, action.microbatch);
  }
  if (makes_input_gradient(action.kind) && s > 0 && !table.same_rank(s, s - 1)) return gradient_message(action);
  return std::nullopt;
}

Action other_end(const Action& communication) {
  const int s = communication.stage, m = communication.microbatch;
  switch (communication.kind) {
    case Kind::send_activation:
      return {Kind::receive_activation, s + 1, m};
    case Kind::receive_activation:
      return {Kind::send_activation, s - 1, m};
    case Kind::send_gradient:
      return {Kind::receive_gradient, s - 1, m};
    case Kind::receive_gradient:
      return {Kind::send_gradient, s + 1, m};
    default:
      LOCKSTEP_CHECK(false, to_string(communication), " has no other end");
  }
}

int peer_of(const Action& communication, const Table& table) {
  return table.rank_of_stage.at(static_cast<size_t>(other_end(communication).stage));
}

}  // namespace lockstep::schedule
