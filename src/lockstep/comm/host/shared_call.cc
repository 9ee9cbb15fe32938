#include "lockstep/comm/host/shared_call.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::comm::host {

uint64_t hash_of(std::string_view text) {
  if (text.empty()) return 0;
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

bool CallInfo::same_call(const CallInfo& other) const {
  return operation == other.operation && type == other.type && reduction == other.reduction && peer == other.peer &&
         count == other.count && tag_hash == other.tag_hash;
}

CallInfo info_of(const Call& call, bool reachable) {
  CallInfo info{.operation = call.operation, .reachable = reachable, .peer = call.peer};
  const bool has_output = call.operation == Operation::reduce_scatter || call.operation == Operation::receive;
  const Buffer& counted = has_output ? call.output : call.input;
  if (call.operation != Operation::barrier) {
    info.type = counted.type;
    info.count = counted.count;
  }
  if (call.operation == Operation::all_reduce || call.operation == Operation::reduce_scatter) {
    info.reduction = call.reduction;
  }
  if (!call.options.tag.empty()) {
    info.tag_hash = hash_of(call.options.tag);
    info.tag = call.options.tag;
  }
  return info;
}

std::string describe(const CallInfo& call, std::span<const int32_t> world_ranks) {
  std::string result(name(call.operation));
  const bool reduces = call.operation == Operation::all_reduce || call.operation == Operation::reduce_scatter;
  if (reduces) result += text("(", name(call.reduction), ")");
  if (call.operation != Operation::barrier) result += text(" of ", call.count, " ", name(call.type));
  const bool known = call.peer >= 0 && static_cast<size_t>(call.peer) < world_ranks.size();
  const int peer = known ? world_ranks[static_cast<size_t>(call.peer)] : call.peer;
  if (call.operation == Operation::send) result += text(" to rank ", peer);
  if (call.operation == Operation::receive || call.operation == Operation::broadcast)
    result += text(" from rank ", peer);
  if (!call.tag.empty()) result += text(" [", call.tag, "]");
  return result;
}

CallInfo SharedCall::load() const {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  return {.operation = static_cast<Operation>(head & 0xff),
          .type = static_cast<DataType>(head >> 8 & 0xff),
          .reduction = static_cast<Reduction>(head >> 16 & 0xff),
          .reachable = (head & kReachableBit) != 0,
          .peer = static_cast<int32_t>(head >> 32),
          .count = count_.load(std::memory_order_relaxed),
          .tag_hash = tag_hash_.load(std::memory_order_relaxed)};
}

void SharedTag::store(std::string_view tag) {
  char bytes[kWords * sizeof(uint64_t)] = {};
  std::memcpy(bytes, tag.data(), std::min(tag.size(), sizeof bytes));
  for (int i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + i * sizeof word, sizeof word);
    words_[i].store(word, std::memory_order_relaxed);
  }
}

std::string SharedTag::load() const {
  char bytes[kWords * sizeof(uint64_t)];
  for (int i = 0; i < kWords; ++i) {
    const uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(bytes + i * sizeof word, &word, sizeof word);
  }
  return std::string(bytes, strnlen(bytes, sizeof bytes));
}

}  // namespace lockstep::comm::host

namespace lockstep::comm {

std::string describe(const Call& call) {
  return host::describe(host::info_of(call, true));
}

}  // namespace lockstep::comm
