#include "lockstep/collective/choose.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::collective {
namespace {

// Short vectors: the fewest rounds. Long ones: the fewest bytes. On one host messages are reads of memory, so that all
// to all at once is best until many ranks share it. Second rules for the same calls are for sums that must be rounded
// once.
constexpr std::string_view kBuiltin = R"(
broadcast       one_host  1..    ..    naive
broadcast       hosts     1..    ..    hierarchical
reduce          one_host  1..    ..    naive
reduce          hosts     1..    ..    hierarchical
reduce          hosts     1..    ..    naive
all_reduce      one_host  1..    ..8K  direct_whole
all_reduce      one_host  1..16  ..    direct
all_reduce      one_host  17..   ..    ring
all_reduce      one_host  17..   ..    direct
all_reduce      hosts     1..    ..8K  recursive_whole
all_reduce      hosts     1..    ..    hierarchical
all_reduce      hosts     1..    ..    direct
reduce_scatter  one_host  1..16  ..    direct
reduce_scatter  one_host  17..   ..    ring
reduce_scatter  one_host  17..   ..    direct
reduce_scatter  hosts     1..    ..    hierarchical
reduce_scatter  hosts     1..    ..    direct
all_gather      one_host  1..16  ..    direct
all_gather      one_host  17..   ..    ring
all_gather      hosts     1..    ..    hierarchical
scatter         one_host  1..    ..    naive
scatter         hosts     1..    ..    hierarchical
gather          one_host  1..    ..    naive
gather          hosts     1..    ..    hierarchical
all_to_all      one_host  1..16  ..    direct
all_to_all      one_host  17..   ..    pairwise
all_to_all      hosts     1..    ..16K hierarchical
all_to_all      hosts     1..    ..    pairwise
)";

bool rounds_once(const Rule& rule, const Request& request) {
  if (rule.algorithm == kNative) return request.native_rounds_once;
  return std::ranges::any_of(algorithms(), [&](const Algorithm& each) {
    return each.operation == rule.operation && each.name == rule.algorithm && rounding(each) == Rounding::once;
  });
}

bool fits(const Rule& rule, const Request& request) {
  if (request.round_once && !rounds_once(rule, request)) return false;
  return rule.operation == request.operation && rule.several_hosts == (request.hosts > 1) &&
         rule.min_ranks <= request.ranks && request.ranks <= rule.max_ranks && request.bytes <= rule.max_bytes;
}

std::string algorithms_of(Operation operation) {
  std::string names(kNative);
  for (const Algorithm& each : algorithms()) {
    if (each.operation == operation) names += text(", ", each.name);
  }
  return names;
}

bool has_algorithm(Operation operation, std::string_view algorithm) {
  return algorithm == kNative || std::ranges::any_of(algorithms(), [&](const Algorithm& each) {
           return each.operation == operation && each.name == algorithm;
         });
}

// One line of a table; errors say which.
class Line {
 public:
  Line(const std::string& line, int number) : number_(number) {
    std::istringstream stream(line.substr(0, line.find('#')));
    for (std::string word; stream >> word;) words_.push_back(word);
  }

  bool empty() const { return words_.empty(); }

  Rule rule() const {
    if (words_.size() != 5) fail("must have operation, one_host or hosts, ranks, bytes, algorithm");
    Rule rule;
    rule.operation = parse_operation(words_[0]);
    if (words_[1] != "one_host" && words_[1] != "hosts") fail(words_[1] + " must be one_host or hosts");
    rule.several_hosts = words_[1] == "hosts";
    const auto [min_ranks, max_ranks] = bounds(words_[2]);
    if (!min_ranks.empty()) rule.min_ranks = ranks(min_ranks);
    if (!max_ranks.empty()) rule.max_ranks = ranks(max_ranks);
    const auto [min_bytes, max_bytes] = bounds(words_[3]);
    if (!min_bytes.empty()) fail(words_[3] + " must begin with ..: earlier rules take what is smaller");
    if (!max_bytes.empty()) rule.max_bytes = parse_size(max_bytes, text("line ", number_));
    rule.algorithm = words_[4];
    if (!has_algorithm(rule.operation, rule.algorithm)) {
      fail(text(words_[0], " has no algorithm ", rule.algorithm, " (it has ", algorithms_of(rule.operation), ")"));
    }
    return rule;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidArgument(text("algorithm table, line ", number_, ": ", what));
  }

  std::pair<std::string, std::string> bounds(const std::string& word) const {
    const size_t dots = word.find("..");
    if (dots == std::string::npos) fail(word + " must be a range such as 2..8, 2.. or ..8");
    return {word.substr(0, dots), word.substr(dots + 2)};
  }

  int ranks(const std::string& word) const {
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < 1) fail(word + " is no number of ranks");
    return value;
  }

  int number_;
  std::vector<std::string> words_;
};

}  // namespace

const RuleTable& builtin_rules() {
  static const RuleTable kRules = parse_rules(kBuiltin);
  return kRules;
}

std::string choose(const Request& request, const RuleTable& rules) {
  const auto found = std::ranges::find_if(rules, [&](const Rule& rule) { return fits(rule, request); });
  if (found != rules.end()) return found->algorithm;
  throw InvalidArgument(text("algorithm table: no rule for ", name(request.operation), " of ", request.bytes,
                             " bytes on ", request.ranks, " ranks and ", request.hosts, " hosts",
                             request.round_once ? " that rounds sums once" : ""));
}

std::string to_string(const RuleTable& rules) {
  std::string result;
  for (const Rule& rule : rules) {
    const std::string max_ranks = rule.max_ranks == Rule::kNoLimit ? "" : std::to_string(rule.max_ranks);
    const std::string max_bytes = rule.max_bytes == Rule::kNoBytesLimit ? "" : std::to_string(rule.max_bytes);
    result += text(name(rule.operation), rule.several_hosts ? " hosts " : " one_host ", rule.min_ranks, "..", max_ranks,
                   " ..", max_bytes, " ", rule.algorithm, "\n");
  }
  return result;
}

RuleTable parse_rules(std::string_view table) {
  RuleTable rules;
  std::istringstream lines{std::string(table)};
  int number = 0;
  for (std::string each; std::getline(lines, each);) {
    const Line line(each, ++number);
    if (!line.empty()) rules.push_back(line.rule());
  }
  return rules;
}

}  // namespace lockstep::collective
