#include "lockstep/schedule/table.h"

#include <algorithm>
#include <array>

#include "lockstep/base/text.h"
#include "lockstep/schedule/spelling.h"

namespace lockstep::schedule {

namespace {

// In the order of Action::Kind.
constexpr std::array<Spelling, kKinds> kSpellings = {{
    {"forward", "F"},
    {"recompute", "R"},
    {"backward", "B"},
    {"input_grad", "I"},
    {"weight_grad", "W"},
    {"send_activation", "SEND_F"},
    {"receive_activation", "RECV_F"},
    {"send_gradient", "SEND_B"},
    {"receive_gradient", "RECV_B"},
    {"unshard", "UNSHARD"},
    {"reshard", "RESHARD"},
    {"reduce_gradient", "REDUCE_GRAD"},
    {"optimizer_step", "STEP"},
}};

}  // namespace

const Spelling& spelling(Action::Kind kind) {
  return kSpellings.at(static_cast<size_t>(kind));
}

std::string_view name(Action::Kind kind) {
  return spelling(kind).name;
}

std::string to_string(const Action& action) {
  const auto number = [](int value) { return value < 0 ? std::string() : text(value); };
  return text(number(action.stage), spelling(action.kind).letters, number(action.microbatch));
}

bool is_compute(Action::Kind kind) {
  return kind <= Action::Kind::weight_grad;
}

bool is_communication(Action::Kind kind) {
  return kind >= Action::Kind::send_activation && kind <= Action::Kind::receive_gradient;
}

bool is_per_microbatch(Action::Kind kind) {
  return is_compute(kind) || is_communication(kind);
}

bool makes_input_gradient(Action::Kind kind) {
  return kind == Action::Kind::backward || kind == Action::Kind::input_grad;
}

bool completes_gradient(Action::Kind kind) {
  return kind == Action::Kind::backward || kind == Action::Kind::weight_grad;
}

bool has_communication(const Table& table) {
  return std::ranges::any_of(table.actions_by_rank, [](const auto& actions) {
    return std::ranges::any_of(actions, [](const Action& action) { return is_communication(action.kind); });
  });
}

std::vector<int> place_stages(Placement placement, int ranks, int chunks) {
  std::vector<int> rank_of_stage;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool back = placement == Placement::v && chunk % 2 == 1;
    for (int i = 0; i < ranks; ++i) rank_of_stage.push_back(back ? ranks - 1 - i : i);
  }
  return rank_of_stage;
}

std::string to_string(const Table& table) {
  std::string result;
  for (const std::vector<Action>& actions : table.actions_by_rank) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < actions.size(); ++i) {
      const bool pair = actions[i].overlaps_next && i + 1 < actions.size();
      cells.push_back(pair ? text("(", to_string(actions[i]), ";", to_string(actions[i + 1]), ")", kOverlap)
                           : to_string(actions[i]));
      if (pair) ++i;
    }
    result += join(cells, ",") + "\n";
  }
  return result;
}

}  // namespace lockstep::schedule
