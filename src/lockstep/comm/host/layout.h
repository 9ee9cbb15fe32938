// The memory that the ranks of one host share, and where everything lies in it.
//
//   Segment   [ Control | group record | group record | ...            | arena of rank 0 | arena of rank 1 | ... ]
//   record    [ Group | Member x p | Channel x 2*p*p | staging x p ]
//
// Ranks as processes map one sparse file, ranks as threads one anonymous mapping without arenas. The pages of what is
// never used never exist. Addresses inside are offsets, since each process maps it elsewhere. All of it starts as
// zeros, and zeros are the initial state.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/host/doorbell.h"
#include "lockstep/comm/host/shared_call.h"

namespace lockstep::comm::host {

inline constexpr int kMaxGroups = 4096;
inline constexpr int64_t kCacheLine = 64;
inline constexpr int64_t kPage = 4096;

inline constexpr int64_t kInlineBytes = 1024;             // a call up to this size travels in the slot
inline constexpr int kAheadLines = 1024;                  // for broadcasts up to that size whose root runs ahead,
inline constexpr int kAheadCalls = 256;                   // by so many calls at most
inline constexpr int64_t kStagingBlockBytes = 256 << 10;  // two per rank and group, for memory that others cannot reach
inline constexpr int64_t kFragmentBytes = 64 << 10;       // of a message
inline constexpr int kFragments = 4;                      // in flight per channel
// A longer message from memory that the receiver reaches is copied once, by the receiver.
inline constexpr int64_t kFetchedBytes = 4096;

// -- the world ------------------------------------------------------------------------------------------------------

enum class RankState : uint32_t {
  running,
  left,  // ended well: whoever still needs something of it has lost it
  lost,  // died or failed: every group that it is in has failed
};

struct alignas(kCacheLine) RankRecord {
  std::atomic<RankState> state{};
  std::atomic<int32_t> process{0};  // that joined as this rank; 0: none yet
  std::atomic<uint32_t> reason_ready{0};
  char reason[1000] = {};  // "killed by signal 9"; written once, before reason_ready
};

struct alignas(kCacheLine) Control {
  uint64_t magic = 0;
  int32_t world_size = 0;
  int32_t launcher = 0;  // its process; 0: none
  int64_t segment_bytes = 0, arena_offset = 0, arena_bytes = 0;
  int64_t default_deadline_ms = 0;

  alignas(kCacheLine) std::atomic<uint32_t> alarm{
      0};  // counts the ends of ranks: what was looked up before may be stale
  alignas(kCacheLine) std::atomic<uint32_t> table_owner{0};  // world rank + 1 of who changes the group table; 0: nobody
  std::atomic<int32_t> group_count{0};
  std::atomic<int64_t> records_end{0};
  std::atomic<int64_t> group_offset[kMaxGroups] = {};
  RankRecord ranks[kMaxRanks];
};

// -- a group --------------------------------------------------------------------------------------------------------

enum class MemberState : uint32_t { absent, present, departed };
enum class FailureState : uint32_t { none, being_written, written };

struct alignas(kCacheLine) Group {
  std::atomic<uint32_t> in_use{0};
  int32_t size = 0;      // for as long as the segment lives: a free record is used again for a group of the same size
  int32_t departed = 0;  // under the table lock; when all have, the record is free

  // Who it is: the repeat-th group of that name and those ranks split from that parent.
  uint64_t generation = 0;  // this record was used for so many groups before
  int32_t parent = -1;
  uint64_t parent_generation = 0;
  uint64_t repeat = 0;
  uint64_t name_hash = 0;
  char name[64] = {};
  int32_t world_ranks[kMaxRanks] = {};

  // The first error; all ranks of the group get it.
  std::atomic<FailureState> failure_state{};
  Failure::Kind failure_kind{};
  int32_t failure_world_rank = -1;  // who wrote it
  int32_t lost_world_rank = -1;     // whom a peer_lost is about
  char failure_message[3072] = {};
};

// Of reachable memory, as Segment::encode gives them.
struct Addresses {
  uint64_t input, output;
};

// A call's announcement. A rank uses its two slots in turns, so it overwrites the one of call n when it makes its
// second call after n that is announced in a slot: it got there only after everyone announced the first, and so had
// done with call n.
struct alignas(kCacheLine) Slot {
  std::atomic<uint64_t> sequence{0};
  SharedCall call;
  // With the two above, a small message is one cache line.
  union {
    char data[kInlineBytes];
    Addresses address;
  };
  SharedTag tag;
  SharedCounts counts;  // of uneven calls

  Slot() {}
  // For a report, at any time, by a rank of a group of `ranks`.
  CallInfo info(int ranks) const { return call.load(tag, &counts, ranks); }
};

// Data of a broadcast that the root runs ahead with (run_ahead.cc). The number of the call has a place of its own in
// every line, so that data is never taken for one; it is written last, and in the first line of a call only.
struct alignas(kCacheLine) AheadLine {
  std::atomic<uint64_t> number{0};
  char data[kCacheLine - sizeof(uint64_t)];

  AheadLine() {}
};

struct Member {
  Slot slots[2];
  alignas(kCacheLine) std::atomic<uint64_t> repeated{0};  // the last call that repeats the short broadcast before it
  alignas(kCacheLine) std::atomic<uint64_t> taken{0};     // such calls whose lines the root may use again
  AheadLine ahead[kAheadLines];
  alignas(kCacheLine) std::atomic<uint64_t> phase{0};  // points inside calls that all ranks pass together
  alignas(kCacheLine) Doorbell collective_bell;        // rung by this member when any of these changes
  alignas(kCacheLine) Doorbell message_bell;  // rung by the others when a channel to or from this member changes
  alignas(kCacheLine) std::atomic<MemberState> state{};
  std::atomic<uint64_t> completed{0};  // the last call that this member ended
  std::atomic<int32_t> processor{0};   // on which it last waited, counted from 1; 0: it has not

  // For the next group in the same record. By atomic stores, for whoever rings at this moment.
  void reset() {
    for (Slot& slot : slots) slot.sequence.store(0);
    if (repeated.exchange(0) != 0 && ahead[0].number.load() != 0) {  // else nobody has put anything there
      for (AheadLine& line : ahead) line.number.store(0);
    }
    taken.store(0);
    phase.store(0);
    completed.store(0);
    processor.store(0);
    state.store(MemberState::absent);
  }
};

// One end of a channel, written by one member only.
struct alignas(kCacheLine) ChannelEnd {
  std::atomic<uint64_t> fragments{0};  // put in, or taken out
  std::atomic<uint64_t> active{0};     // number of the message this end is in; 0: none
  SharedCall call;
  SharedTag tag;
};

// The receiver looks at nothing else: what a few bytes need is in the first cache line.
struct alignas(kCacheLine) Fragment {
  std::atomic<uint64_t> number{0};  // counted from 1; written last
  SharedCall call;
  uint64_t address = 0;  // not 0: the whole message lies there, and the receiver copies it
  alignas(16) char data[kFragmentBytes];
  SharedTag tag;

  Fragment() {}
};

// What a channel carries: the user's messages, or those of step programs, which never wait for one another.
enum class Carries : int { messages, steps };
inline constexpr int kChannelsOfPair = 2;

// One ordered pair of ranks, as a ring of fragments.
struct Channel {
  ChannelEnd sender, receiver;
  Fragment fragments[kFragments];

  // For the sender, where there is room: fills the fragment and puts it. Returns its number.
  Fragment& next_to_put() { return fragments[sender.fragments.load(std::memory_order_relaxed) % kFragments]; }
  uint64_t put(Fragment& fragment, const CallInfo& call) {
    const uint64_t number = sender.fragments.load(std::memory_order_relaxed) + 1;
    fragment.call.store(call);
    if (call.detail_hash != 0) fragment.tag.store(call.tag);
    sender.fragments.store(number, std::memory_order_relaxed);
    fragment.number.store(number, std::memory_order_release);
    claim_cache_line(&fragments[number % kFragments]);
    return number;
  }
  // For the receiver: null if there is none.
  const Fragment* next_to_take() const {
    const uint64_t taken = receiver.fragments.load(std::memory_order_relaxed);
    const Fragment& fragment = fragments[taken % kFragments];
    return fragment.number.load(std::memory_order_acquire) == taken + 1 ? &fragment : nullptr;
  }
  void take() {
    receiver.fragments.store(receiver.fragments.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // For the next group in the same record. Numbers go on, so that what nobody took is not taken for new.
  void reset() {
    receiver.fragments.store(sender.fragments.load());
    sender.active.store(0);
    receiver.active.store(0);
  }
};

inline int64_t members_offset() {
  return sizeof(Group);
}
inline int64_t channels_offset(int size) {
  return members_offset() + size * static_cast<int64_t>(sizeof(Member));
}
inline int64_t staging_offset(int size) {
  const int64_t end =
      channels_offset(size) + int64_t{kChannelsOfPair} * size * size * static_cast<int64_t>(sizeof(Channel));
  return (end + kPage - 1) / kPage * kPage;
}
inline int64_t record_bytes(int size) {
  return staging_offset(size) + size * 2 * kStagingBlockBytes;
}

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared memory needs atomics that are only their value");

}  // namespace lockstep::comm::host
