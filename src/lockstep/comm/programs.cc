#include "lockstep/comm/programs.h"

#include <algorithm>
#include <limits>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/comm/call_info.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kNativeName = collective::kNative;

collective::Operation collective_of(Operation operation) {
  return collective::parse_operation(name(operation));
}

// Bytes of the whole vector, as collective::Request counts them; the same on all ranks.
int64_t whole_bytes(const Call& call, int64_t ranks) {
  const CallInfo info = info_of(call);
  if (info.counts_differ_by_rank()) return std::numeric_limits<int64_t>::max();
  const bool in_parts = call.operation == Operation::reduce_scatter || call.operation == Operation::all_gather ||
                        call.operation == Operation::scatter || call.operation == Operation::gather;
  return in_parts && !info.uneven ? info.bytes() * ranks : info.bytes();
}

bool must_add_in_tree(const Call& call) {
  return call.options.balanced_tree && reduces(call.operation);
}

void refuse_unless_any_order(const Call& call) {
  if (!must_add_in_tree(call)) return;
  throw InvalidArgument(text(describe(call), ": ", call.options.algorithm,
                             " does not add in the balanced tree over the ranks (nearest: naive)"));
}

}  // namespace

std::string_view algorithm_name(Operation operation, uint8_t algorithm) {
  if (algorithm == kNative) return kNativeName;
  uint8_t number = 0;
  for (const collective::Algorithm& each : collective::algorithms()) {
    if (name(each.operation) == name(operation) && ++number == algorithm) return each.name;
  }
  return "announced";
}

Programs::Programs(Options options) : options_(std::move(options)) {
  hosts_ = static_cast<int>(std::set<int>(options_.host_of_rank.begin(), options_.host_of_rank.end()).size());
}

collective::Shape Programs::shape(int root) const {
  return {.ranks = static_cast<int>(options_.host_of_rank.size()), .root = root, .host_of_rank = options_.host_of_rank};
}

uint8_t Programs::choose(const Call& call) const {
  if (call.operation == Operation::barrier) return kNative;
  const std::string_view asked = call.options.algorithm;
  if (asked.empty()) return chosen_by_rules(call);
  if (asked == kNativeName) {
    if (!options_.native_adds_in_tree) refuse_unless_any_order(call);
    return kNative;
  }
  std::string names(kNativeName);
  uint8_t number = 0;
  for (const collective::Algorithm& each : collective::algorithms()) {
    if (each.operation != collective_of(call.operation)) continue;
    ++number;
    if (each.name == asked) {
      if (rounding(each) != collective::Rounding::once) refuse_unless_any_order(call);
      return number;
    }
    names += text(", ", each.name);
  }
  throw InvalidArgument(
      text(describe(call), ": there is no algorithm ", asked, "; ", name(call.operation), " has ", names));
}

uint8_t Programs::chosen_by_rules(const Call& call) const {
  if (options_.rules.empty() && options_.announced_bytes == 0) return kNative;
  const auto ranks = static_cast<int>(options_.host_of_rank.size());
  const int64_t bytes = whole_bytes(call, ranks);
  if (bytes <= options_.announced_bytes) return kAnnounced;
  if (options_.rules.empty()) return kNative;
  Call named = call;
  const std::string chosen = collective::choose({.operation = collective_of(call.operation),
                                                 .bytes = bytes,
                                                 .ranks = ranks,
                                                 .hosts = hosts_,
                                                 .round_once = must_add_in_tree(call),
                                                 .native_rounds_once = options_.native_adds_in_tree},
                                                options_.rules);
  named.options.algorithm = chosen;
  return choose(named);
}

const collective::Program& Programs::program(Operation operation, uint8_t algorithm, int root) {
  auto& made = made_[{operation, algorithm, root}];
  if (made == nullptr) {
    made = std::make_unique<const collective::Program>(
        collective::make_program(collective_of(operation), algorithm_name(operation, algorithm), shape(root)));
  }
  return *made;
}

std::vector<int64_t> piece_sizes_of(const collective::Program& program, const Call& call, Counts sent_counts) {
  if (!call.uneven()) {
    const int64_t count = info_of(call).count;
    return collective::piece_sizes(program, call.operation == Operation::all_to_all ? count / program.ranks : count);
  }
  const Counts counts = call.operation == Operation::all_to_all       ? sent_counts
                        : call.operation == Operation::reduce_scatter ? call.input_counts
                                                                      : call.output_counts;
  return {counts.begin(), counts.end()};
}

}  // namespace lockstep::comm
