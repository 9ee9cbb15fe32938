// A call as other ranks see it: the fingerprint that is compared before data moves, and the words that errors print.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm::host {

// A rank's view of a call, its own or another's.
struct CallInfo {
  Operation operation = Operation::barrier;
  DataType type = DataType::u8;
  Reduction reduction = Reduction::sum;
  bool reachable = true;  // the caller's memory can be read and written by the other ranks; not part of the fingerprint
  int32_t peer = -1;
  int64_t count = 0;
  uint64_t tag_hash = 0;
  std::string tag;

  // What all ranks must agree on. `peer` of a send or receive differs by nature and is implied by the channel.
  bool same_call(const CallInfo& other) const;
  int64_t bytes() const { return count * element_size(type); }
};

// `count` of reduce_scatter and all_gather is that of one rank's slice.
CallInfo info_of(const Call& call, bool reachable);

// "all_reduce(sum) of 1024 f32 [bucket 3]"; peers are printed as world ranks when the group's are given.
std::string describe(const CallInfo& call, std::span<const int32_t> world_ranks = {});

// A CallInfo in shared memory. Its words are relaxed atomics because reports read it at any time; the sequence number
// beside it orders the reads that matter. Tags are cut to what fits, their hash is of the whole.
class SharedCall {
 public:
  void store(const CallInfo& call) {
    head_.store(pack(call), std::memory_order_relaxed);
    count_.store(call.count, std::memory_order_relaxed);
    tag_hash_.store(call.tag_hash, std::memory_order_relaxed);
  }
  // Without the tag's text, which lies elsewhere so that this part fits the first cache line of a slot.
  CallInfo load() const;
  // The comparison on the fast path.
  bool same_call(const SharedCall& other) const {
    constexpr auto relaxed = std::memory_order_relaxed;
    return ((head_.load(relaxed) ^ other.head_.load(relaxed)) & ~kReachableBit) == 0 &&
           count_.load(relaxed) == other.count_.load(relaxed) &&
           tag_hash_.load(relaxed) == other.tag_hash_.load(relaxed);
  }
  bool reachable() const { return (head_.load(std::memory_order_relaxed) & kReachableBit) != 0; }

 private:
  static constexpr uint64_t kReachableBit = uint64_t{1} << 24;
  static uint64_t pack(const CallInfo& call) {
    return static_cast<uint64_t>(call.operation) | static_cast<uint64_t>(call.type) << 8 |
           static_cast<uint64_t>(call.reduction) << 16 | (call.reachable ? kReachableBit : 0) |
           static_cast<uint64_t>(static_cast<uint32_t>(call.peer)) << 32;
  }
  std::atomic<uint64_t> head_{0};
  std::atomic<int64_t> count_{0};
  std::atomic<uint64_t> tag_hash_{0};
};

class SharedTag {
 public:
  void store(std::string_view tag);
  std::string load() const;

 private:
  static constexpr int kWords = 4;
  std::atomic<uint64_t> words_[kWords] = {};
};

// FNV-1a; 0 for an empty text.
uint64_t hash_of(std::string_view text);

}  // namespace lockstep::comm::host
