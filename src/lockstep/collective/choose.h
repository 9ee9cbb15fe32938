// Which algorithm serves a call: the first row of a table that it fits. The built-in table is a guess that is right in
// shape (few rounds for short vectors, few bytes for long ones, hosts one by one); measurements write a better one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/collective/program.h"

namespace lockstep::collective {

// The name that stands for a backend's own way in rules and calls; no program describes it.
inline constexpr std::string_view kNative = "native";

// Fits calls of `operation` of at most max_bytes on min_ranks to max_ranks ranks, on one host or on several.
struct Rule {
  Operation operation = Operation::all_reduce;
  bool several_hosts = false;
  int min_ranks = 1, max_ranks = kNoLimit;
  int64_t max_bytes = kNoBytesLimit;
  std::string algorithm;  // or kNative
  bool operator==(const Rule&) const = default;

  static constexpr int kNoLimit = 2147483647;
  static constexpr int64_t kNoBytesLimit = 9223372036854775807;
};

// Rules in the order in which they are tried.
using RuleTable = std::vector<Rule>;

const RuleTable& builtin_rules();

struct Request {
  Operation operation = Operation::all_reduce;
  int64_t bytes = 0;  // of the whole vector: a rank's input or output, whichever is longer
  int ranks = 1;
  int hosts = 1;
  bool round_once = false;          // only algorithms whose sums are rounded once, in the balanced tree over the ranks
  bool native_rounds_once = false;  // whether the backend's own way is one of them
};

// Name of the algorithm: of the first rule that fits and whose algorithm rounds as asked.
//   throws   InvalidArgument when no rule fits (never with the built-in table)
std::string choose(const Request& request, const RuleTable& rules = builtin_rules());

// One rule a line, "#" begins a comment:
//   all_reduce one_host 2..8 ..64K direct        two to eight ranks, up to 65536 bytes
//   all_reduce hosts 1.. .. hierarchical         any more
std::string to_string(const RuleTable& rules);
// throws InvalidArgument with the line and what is wrong in it; an algorithm must be one of its operation
RuleTable parse_rules(std::string_view text);

}  // namespace lockstep::collective
