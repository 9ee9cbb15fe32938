#include "lockstep/schedule/table.h"

#include <array>

namespace lockstep::schedule {

namespace {

struct Spelling {
  std::string_view name;
  std::string_view letters;  // in the text form, between stage and micro-batch
};

// In the order of Action::Kind.
constexpr std::array kSpellings = {
    Spelling{"forward", "F"},
    Spelling{"recompute", "R"},
    Spelling{"backward", "B"},
    Spelling{"input_grad", "I"},
    Spelling{"weight_grad", "W"},
    Spelling{"send_activation", "SEND_F"},
    Spelling{"receive_activation", "RECV_F"},
    Spelling{"send_gradient", "SEND_B"},
    Spelling{"receive_gradient", "RECV_B"},
    Spelling{"unshard", "UNSHARD"},
    Spelling{"reshard", "RESHARD"},
    Spelling{"reduce_gradient", "REDUCE_GRAD"},
    Spelling{"optimizer_step", "STEP"},
};

const Spelling& spelling(Action::Kind kind) {
  return kSpellings.at(static_cast<size_t>(kind));
}

}  // namespace

std::string_view name(Action::Kind kind) {
  return spelling(kind).name;
}

std::string to_string(const Action& action) {
  const auto number = [](int value) { return value < 0 ? std::string() : text(value); };
  return text(number(action.stage), spelling(action.kind).letters, number(action.microbatch));
}

std::string to_string(const Table& table) {
  std::string result;
  for (const std::vector<Action>& actions : table.actions_by_rank) {
    std::vector<std::string> words;
    for (const Action& action : actions) words.push_back(to_string(action));
    result += join(words, ",") + "\n";
  }
  return result;
}

}  // namespace lockstep::schedule
