// A CallInfo in shared memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "lockstep/comm/call_info.h"

namespace lockstep::comm::host {

inline constexpr int kMaxRanks = 64;

// Words are relaxed atomics because reports read them at any time; the sequence number beside them orders the reads
// that matter. Tags are cut to what fits, their hash is of the whole.
class SharedTag {
 public:
  void store(std::string_view tag);
  std::string load() const;

 private:
  static constexpr int kWords = 4;
  std::atomic<uint64_t> words_[kWords] = {};
};

// CallInfo::counts.
class SharedCounts {
 public:
  void store(Counts counts) {
    for (size_t i = 0; i < counts.size(); ++i) words_[i].store(counts[i], std::memory_order_relaxed);
  }
  int64_t operator[](int i) const { return words_[i].load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> words_[2 * kMaxRanks] = {};
};

// The rest of a CallInfo.
class SharedCall {
 public:
  void store(const CallInfo& call) {
    head_.store(pack(call), std::memory_order_relaxed);
    count_.store(call.counts_differ_by_rank() ? 0 : call.count, std::memory_order_relaxed);
    detail_hash_.store(call.detail_hash, std::memory_order_relaxed);
  }
  // Tag and counts lie elsewhere so that this part fits the first cache line of a slot.
  //   counts  of a collective; null for a message, which has none
  CallInfo load(const SharedTag& tag, const SharedCounts* counts = nullptr, int ranks = 0) const;
  // The comparison on the fast path.
  bool same_call(const SharedCall& other) const {
    constexpr auto relaxed = std::memory_order_relaxed;
    return ((head_.load(relaxed) ^ other.head_.load(relaxed)) & ~kReachableBit) == 0 &&
           count_.load(relaxed) == other.count_.load(relaxed) &&
           detail_hash_.load(relaxed) == other.detail_hash_.load(relaxed);
  }
  bool same_call(const CallInfo& call) const {
    constexpr auto relaxed = std::memory_order_relaxed;
    return ((head_.load(relaxed) ^ pack(call)) & ~kReachableBit) == 0 && count_.load(relaxed) == call.count &&
           detail_hash_.load(relaxed) == call.detail_hash;
  }
  // What both ends of a message must agree on.
  bool same_data(const CallInfo& call) const {
    constexpr auto relaxed = std::memory_order_relaxed;
    return ((head_.load(relaxed) ^ pack(call)) & kTypeBits) == 0 && count_.load(relaxed) == call.count &&
           detail_hash_.load(relaxed) == call.detail_hash;
  }
  bool reachable() const { return (head_.load(std::memory_order_relaxed) & kReachableBit) != 0; }

 private:
  static constexpr uint64_t kTypeBits = 0xff00;
  static constexpr uint64_t kReachableBit = uint64_t{1} << 24;
  static constexpr uint64_t kUnevenBit = uint64_t{1} << 25;
  static constexpr int kAlgorithmShift = 26;  // 6 bits
  static uint64_t pack(const CallInfo& call) {
    return static_cast<uint64_t>(call.operation) | static_cast<uint64_t>(call.type) << 8 |
           static_cast<uint64_t>(call.reduction) << 16 | (call.reachable ? kReachableBit : 0) |
           (call.uneven ? kUnevenBit : 0) | static_cast<uint64_t>(call.algorithm) << kAlgorithmShift |
           static_cast<uint64_t>(static_cast<uint32_t>(call.peer)) << 32;
  }
  std::atomic<uint64_t> head_{0};
  std::atomic<int64_t> count_{0};
  std::atomic<uint64_t> detail_hash_{0};
};

}  // namespace lockstep::comm::host
