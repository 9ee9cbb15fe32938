// Reads the text form, which is PyTorch's.
#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/schedule/spelling.h"
#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

namespace {

constexpr int kMostStages = 1 << 16, kMostMicrobatches = 1 << 20;

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t start = 0;;) {
    const size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

// -1 for no digits at all; nothing for anything but a number below `limit`.
std::optional<int> number(std::string_view digits, int limit) {
  if (digits.empty()) return -1;
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value >= limit) return std::nullopt;
  return value;
}

std::optional<Action> parse_action(std::string_view word) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto letters_begin = std::ranges::find_if_not(word, is_digit);
  const auto letters_end =
      std::ranges::find_if_not(word.rbegin(), std::make_reverse_iterator(letters_begin), is_digit).base();
  const auto stage = number({word.begin(), letters_begin}, kMostStages);
  const auto microbatch = number({letters_end, word.end()}, kMostMicrobatches);
  const std::string_view letters(letters_begin, letters_end);
  if (!stage || !microbatch) return std::nullopt;
  for (int i = 0; i < kKinds; ++i) {
    const auto kind = static_cast<Action::Kind>(i);
    if (spelling(kind).letters != letters) continue;
    const bool has_stage = *stage >= 0, has_microbatch = *microbatch >= 0;
    const bool right = has_stage == (kind != Action::Kind::optimizer_step) && has_microbatch == is_per_microbatch(kind);
    return right ? std::optional(Action{kind, *stage, *microbatch}) : std::nullopt;
  }
  return std::nullopt;
}

// The actions of a cell: none, one, or the two of a pair.
std::optional<std::vector<Action>> parse_cell(std::string_view cell) {
  if (cell.empty()) return std::vector<Action>{};
  if (!cell.starts_with("(")) {
    const auto action = parse_action(cell);
    return action ? std::optional(std::vector{*action}) : std::nullopt;
  }
  const size_t close = cell.find(')');
  if (close == std::string_view::npos || cell.substr(close + 1) != kOverlap) return std::nullopt;
  const auto parts = split(cell.substr(1, close - 1), ';');
  if (parts.size() != 2) return std::nullopt;
  auto first = parse_action(trimmed(parts[0]));
  const auto second = parse_action(trimmed(parts[1]));
  if (!first || !second) return std::nullopt;
  first->overlaps_next = true;
  return std::vector{*first, *second};
}

std::vector<Action> parse_line(std::string_view line, size_t rank) {
  std::vector<Action> actions;
  const auto cells = split(line, ',');
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto parsed = parse_cell(trimmed(cells[i]));
    if (!parsed) {
      throw InvalidArgument(Problem{text("line ", rank + 1, ", cell ", i + 1), std::string(trimmed(cells[i])),
                                    text("must be an action such as 2F0, 1B3, 0SEND_F1 or (0F3;3B1)", kOverlap),
                                    "an empty cell for a slot without action"}
                                .message());
    }
    actions.insert(actions.end(), parsed->begin(), parsed->end());
  }
  return actions;
}

std::vector<int> ranks_of_stages(const Table& table) {
  std::map<int, int> rank_of_stage;
  for (int rank = 0; rank < table.ranks; ++rank) {
    for (const Action& action : table.actions_by_rank[static_cast<size_t>(rank)]) {
      if (action.stage >= 0) rank_of_stage.emplace(action.stage, rank);
    }
  }
  const int stages = rank_of_stage.empty() ? 0 : rank_of_stage.rbegin()->first + 1;
  std::vector<int> result(static_cast<size_t>(stages), -1);  // -1: stands in no line
  for (const auto& [stage, rank] : rank_of_stage) result[static_cast<size_t>(stage)] = rank;
  return result;
}

// Of the highest numbers that the stages' forwards reach, the one that most reach; of equally many, the first stage's.
int count_microbatches(const Table& table) {
  std::map<int, int> last_of_stage;
  for (const auto& actions : table.actions_by_rank) {
    for (const Action& action : actions) {
      if (action.kind != Action::Kind::forward) continue;
      int& last = last_of_stage.emplace(action.stage, -1).first->second;
      last = std::max(last, action.microbatch);
    }
  }
  std::map<int, int> votes;
  for (const auto& [stage, last] : last_of_stage) ++votes[last];
  int chosen = -1;
  for (const auto& [stage, last] : last_of_stage) {
    if (chosen < 0 || votes[last] > votes[chosen]) chosen = last;
  }
  return chosen + 1;
}

}  // namespace

Table parse_table(std::string_view text) {
  Table table;
  while (text.ends_with('\n')) text.remove_suffix(1);
  for (const std::string_view line : split(text, '\n')) {
    table.actions_by_rank.push_back(parse_line(line, table.actions_by_rank.size()));
  }
  table.ranks = static_cast<int>(table.actions_by_rank.size());
  table.rank_of_stage = ranks_of_stages(table);
  table.microbatches = count_microbatches(table);
  if (table.microbatches < 1) {
    throw InvalidArgument("the table has no forward; it needs a line per rank, such as 0F0,0B0");
  }
  return table;
}

}  // namespace lockstep::schedule
