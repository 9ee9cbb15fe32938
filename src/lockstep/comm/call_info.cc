#include "lockstep/comm/call_info.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/comm/programs.h"

namespace lockstep::comm {
namespace {

// The buffer whose type and count stand for the call's.
const Buffer& counted_buffer(const Call& call) {
  const bool output = call.operation == Operation::reduce_scatter || call.operation == Operation::scatter ||
                      call.operation == Operation::receive;
  return output ? call.output : call.input;
}

void add_counts(CallInfo& info, const Call& call, size_t ranks) {
  info.uneven = true;
  info.counts.assign(call.input_counts.begin(), call.input_counts.end());
  info.counts.insert(info.counts.end(), call.output_counts.begin(), call.output_counts.end());
  uint64_t sum = 0;  // of counts that may not have been validated
  for (const int64_t count : Counts(info.counts).first(ranks)) sum += static_cast<uint64_t>(count);
  info.count = static_cast<int64_t>(sum);
  if (call.operation != Operation::all_to_all) info.detail_hash ^= hash_of(info.counts);
}

std::string counts_text(const CallInfo& call) {
  const Counts all = call.counts;
  if (all.empty()) return " in uneven parts";  // of another rank, which did not say how many
  if (call.operation != Operation::all_to_all) return text(" in parts of ", join(all, ", "));
  const size_t ranks = all.size() / 2;
  return text(" sending ", join(all.first(ranks), ", "), " and receiving ", join(all.subspan(ranks), ", "));
}

}  // namespace

uint64_t hash_of(std::string_view text) {
  if (text.empty()) return 0;
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

uint64_t hash_of(Counts counts) {
  return hash_of(std::string_view(reinterpret_cast<const char*>(counts.data()), counts.size_bytes()));
}

bool CallInfo::same_call(const CallInfo& other) const {
  return operation == other.operation && type == other.type && reduction == other.reduction && peer == other.peer &&
         uneven == other.uneven && algorithm == other.algorithm && (count == other.count || counts_differ_by_rank()) &&
         detail_hash == other.detail_hash;
}

CallInfo info_of(const Call& call, bool reachable) {
  CallInfo info{.operation = call.operation, .reachable = reachable, .peer = call.peer};
  if (call.operation != Operation::barrier) {
    const Buffer& counted = counted_buffer(call);
    info.type = counted.type;
    info.count = counted.count;
  }
  if (reduces(call.operation)) info.reduction = call.reduction;
  if (!call.options.tag.empty()) {
    info.detail_hash = hash_of(call.options.tag);
    info.tag = call.options.tag;
  }
  if (call.uneven()) {
    add_counts(info, call, std::max(call.input_counts.size(), call.output_counts.size()));
  }
  return info;
}

std::string describe(const CallInfo& call, std::span<const int32_t> world_ranks) {
  std::string result(name(call.operation));
  if (reduces(call.operation)) result += text("(", name(call.reduction), ")");
  if (call.operation != Operation::barrier) result += text(" of ", call.count, " ", name(call.type));
  if (call.uneven) result += counts_text(call);
  const bool known = call.peer >= 0 && static_cast<size_t>(call.peer) < world_ranks.size();
  const int peer = known ? world_ranks[static_cast<size_t>(call.peer)] : call.peer;
  switch (call.operation) {
    case Operation::send:
    case Operation::reduce:
    case Operation::gather:
      result += text(" to rank ", peer);
      break;
    case Operation::receive:
    case Operation::broadcast:
    case Operation::scatter:
      result += text(" from rank ", peer);
      break;
    default:
      break;
  }
  if (call.algorithm != kNative && call.algorithm != kAnnounced) {
    result += text(" by ", algorithm_name(call.operation, call.algorithm));
  }
  if (!call.tag.empty()) result += text(" [", call.tag, "]");
  return result;
}

std::string who_made_what(const RanksByCall& ranks_by_call) {
  std::vector<std::string> clauses;
  for (const auto& [call, ranks] : ranks_by_call) {
    clauses.push_back(text(ranks.size() > 1 ? "ranks " : "rank ", join(ranks), " made ", call));
  }
  return join(clauses, "; ");
}

std::string describe(const Call& call) {
  return describe(info_of(call));
}

}  // namespace lockstep::comm
