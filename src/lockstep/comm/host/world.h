// What concerns all ranks of a host: who has ended, and which groups there are.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/host/segment.h"

namespace lockstep::comm::host {

// Records how a rank ended, and wakes whoever waits. `lost` replaces `left`; nothing replaces `lost`.
//   reason  completes "rank 2 was lost (...)"; cut to what fits
void mark_ended(const Segment& segment, int rank, RankState state, std::string_view reason);
// Empty while the rank runs.
std::string reason_of_end(const Segment& segment, int rank);

// Who a group is. Ranks that ask for the same key are in the same group, without having communicated.
struct GroupKey {
  int parent = -1;  // index of the parent's record; -1: none, this is the world
  uint64_t parent_generation = 0;
  uint64_t repeat = 0;  // the ranks made that group from that parent so often before
  std::vector<int32_t> world_ranks;
  std::string name;
};

// A group's record where it is mapped here, as one of its members sees it.
struct GroupView {
  const Segment* segment = nullptr;
  Group* group = nullptr;
  int index = -1;  // of the record
  int rank = -1;   // mine

  int size() const { return group->size; }
  std::span<const int32_t> world_ranks() const { return {group->world_ranks, static_cast<size_t>(group->size)}; }
  int world_rank() const { return group->world_ranks[rank]; }
  Member& member(int r) const { return reinterpret_cast<Member*>(record() + members_offset())[r]; }
  Member& mine() const { return member(rank); }
  Channel& channel(Carries what, int from, int to) const {
    const int pair = from * size() + to;
    return reinterpret_cast<Channel*>(record() +
                                      channels_offset(size()))[kChannelsOfPair * pair + static_cast<int>(what)];
  }
  char* staging(int r, int half) const {
    return record() + staging_offset(size()) + (2 * r + half) * kStagingBlockBytes;
  }

 private:
  char* record() const { return reinterpret_cast<char*>(group); }
};

// How to wait now. On a busy machine the scheduler may put two ranks on one processor and leave them there, where one
// that spins keeps the other from coming: if another member last waited on the processor that this thread is on, it
// yields.
Patience patience_here(const GroupView& view, const Patience& usual);

// Joins the group of that key as `rank` of it, making the record if this is the first member to come.
//   throws  PeerLost if a rank died while it changed the table; Unsupported if there are too many groups
GroupView join_group(const Segment& segment, const GroupKey& key, int rank);
// The group of all ranks, which some rank must have joined.
GroupView world_view(const Segment& segment, int world_rank);
// The record is used again when every member has left; the world's never.
void leave_group(const GroupView& view) noexcept;

// The first failure wins. Wakes every member.
//   lost_world_rank  whom a peer_lost is about, else -1
void fail_group(const GroupView& view, Failure::Kind kind, std::string_view message, int lost_world_rank);
void ring_members(const Segment& segment, Group& group);

// The first failure that a rank recorded in some group, in its own words; empty if it recorded none.
std::string failure_recorded_by(const Segment& segment, int world_rank, int asking_world_rank);

// "rank 0 is in barrier (call 3 on group 'dp'); rank 1 is in no call": every rank of the world, as of now.
std::string calls_of_every_rank(const Segment& segment, int asking_world_rank);

}  // namespace lockstep::comm::host
