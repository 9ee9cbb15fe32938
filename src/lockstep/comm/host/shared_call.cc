#include "lockstep/comm/host/shared_call.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lockstep::comm::host {

CallInfo SharedCall::load(const SharedTag& tag, const SharedCounts* counts, int ranks) const {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  CallInfo info{.operation = static_cast<Operation>(head & 0xff),
                .type = static_cast<DataType>(head >> 8 & 0xff),
                .reduction = static_cast<Reduction>(head >> 16 & 0xff),
                .reachable = (head & kReachableBit) != 0,
                .uneven = (head & kUnevenBit) != 0,
                .algorithm = static_cast<uint8_t>(head >> kAlgorithmShift & 0x3f),
                .peer = static_cast<int32_t>(head >> 32),
                .count = count_.load(std::memory_order_relaxed),
                .detail_hash = detail_hash_.load(std::memory_order_relaxed)};
  if (info.detail_hash != 0) info.tag = tag.load();
  if (!info.uneven || counts == nullptr) return info;
  const int lists = info.counts_differ_by_rank() ? 2 : 1;
  for (int i = 0; i < lists * ranks; ++i) info.counts.push_back((*counts)[i]);
  info.count = std::accumulate(info.counts.begin(), info.counts.begin() + ranks, int64_t{0});
  return info;
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
