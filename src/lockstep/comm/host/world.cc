#include "lockstep/comm/host/world.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::comm::host {
namespace {

// Held for microseconds, so waiting is polling. A rank that dies meanwhile is noticed; one that is stopped runs into a
// limit.
class TableLock {
 public:
  TableLock(Control& control, int world_rank, double longest_s = 60) : control_(control) {
    const double start_s = now_s();
    for (int tries = 0; !take(world_rank); ++tries) {
      const int owner = static_cast<int>(control.table_owner.load()) - 1;
      if (owner >= 0 && control.ranks[owner].state.load() == RankState::lost) {
        throw PeerLost(
            text("rank ", world_rank, ": rank ", owner, " was lost while it made a group; start the job again"));
      }
      if (now_s() - start_s > longest_s) {
        throw DeadlineExceeded(text("rank ", world_rank, ": waited ", longest_s, " s to make a group while rank ",
                                    owner, " makes one; see why that rank stands still"));
      }
      if (tries < 100) {
        sched_yield();
      } else {
        usleep(50);
      }
    }
  }
  ~TableLock() { control_.table_owner.store(0); }
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;

 private:
  bool take(int world_rank) {
    uint32_t free = 0;
    return control_.table_owner.compare_exchange_strong(free, static_cast<uint32_t>(world_rank) + 1);
  }
  Control& control_;
};

Group& group_at(const Segment& segment, int index) {
  return *reinterpret_cast<Group*>(segment.at(segment.control().group_offset[index].load()));
}

bool matches(const Group& group, const GroupKey& key) {
  return group.in_use.load() != 0 && group.parent == key.parent && group.parent_generation == key.parent_generation &&
         group.repeat == key.repeat && group.name_hash == hash_of(key.name) &&
         std::equal(key.world_ranks.begin(), key.world_ranks.end(), group.world_ranks, group.world_ranks + group.size);
}

// A record nobody uses, for a group of `size`; a new one if there is none.
int free_record(const Segment& segment, int size) {
  Control& control = segment.control();
  const int count = control.group_count.load();
  for (int i = 0; i < count; ++i) {
    const Group& group = group_at(segment, i);
    if (group.in_use.load() == 0 && group.size == size) return i;
  }
  const int64_t offset = control.records_end.load();
  if (count == kMaxGroups || offset + record_bytes(size) > control.arena_offset) {
    throw Unsupported(text("there are ", count, " process groups already and no room for one more of ", size,
                           " ranks: destroy groups that are no longer needed, on every rank"));
  }
  (new (segment.at(offset)) Group)->size = size;
  control.records_end.store(offset + record_bytes(size));
  control.group_offset[count].store(offset);
  control.group_count.store(count + 1);
  return count;
}

void start_afresh(const GroupView& view, const GroupKey& key) {
  Group& group = *view.group;
  ++group.generation;
  group.departed = 0;
  group.failure_state.store(FailureState::none);
  group.parent = key.parent;
  group.parent_generation = key.parent_generation;
  group.repeat = key.repeat;
  group.name_hash = hash_of(key.name);
  std::memset(group.name, 0, sizeof group.name);
  std::memcpy(group.name, key.name.data(), std::min(key.name.size(), sizeof group.name - 1));
  std::copy(key.world_ranks.begin(), key.world_ranks.end(), group.world_ranks);
  for (int r = 0; r < group.size; ++r) {
    view.member(r).reset();
    for (int to = 0; to < group.size; ++to) {
      for (const Carries what : {Carries::messages, Carries::steps}) {
        view.channel(what, r, to).reset();
      }
    }
  }
  group.in_use.store(1);
}

std::string call_text(const Group& group, const CallInfo& call, std::string_view kind, uint64_t number) {
  const bool failed = group.failure_state.load() != FailureState::none;
  return text(failed ? "failed in " : "is in ", describe(call, {group.world_ranks, static_cast<size_t>(group.size)}),
              " (", kind, " ", number, " on group '", group.name, "')");
}

void add_calls_of_member(const GroupView& view, int r, std::vector<std::string>& calls) {
  const Member& member = view.member(r);
  const Slot& latest = member.slots[member.slots[0].sequence.load() > member.slots[1].sequence.load() ? 0 : 1];
  const uint64_t announced = std::max(latest.sequence.load(), member.repeated.load());
  if (announced > member.completed.load()) {
    calls.push_back(call_text(*view.group, latest.info(view.size()), "call", announced));
  }
  for (int peer = 0; peer < view.size(); ++peer) {
    for (const ChannelEnd* end :
         {&view.channel(Carries::messages, r, peer).sender, &view.channel(Carries::messages, peer, r).receiver}) {
      const uint64_t number = end->active.load();
      if (number == 0) continue;
      calls.push_back(call_text(*view.group, end->call.load(end->tag), "message", number));
    }
  }
}

}  // namespace

void mark_ended(const Segment& segment, int rank, RankState state, std::string_view reason) {
  RankRecord& record = segment.control().ranks[rank];
  RankState before = record.state.load();
  do {
    if (before == RankState::lost || (before == RankState::left && state == RankState::left)) return;
  } while (!record.state.compare_exchange_weak(before, state));
  if (state == RankState::lost) {
    std::memcpy(record.reason, reason.data(), std::min(reason.size(), sizeof record.reason - 1));
    record.reason_ready.store(1);
  }
  segment.control().alarm.fetch_add(1);
  const int groups = segment.control().group_count.load();
  for (int i = 0; i < groups; ++i) ring_members(segment, group_at(segment, i));
}

std::string reason_of_end(const Segment& segment, int rank) {
  const RankRecord& record = segment.control().ranks[rank];
  switch (record.state.load()) {
    case RankState::running:
      return "";
    case RankState::left:
      return "it has ended without making this call";
    case RankState::lost:
      break;
  }
  const double start_s = now_s();
  while (record.reason_ready.load() == 0 && now_s() - start_s < 0.1) sched_yield();
  return record.reason_ready.load() != 0 ? record.reason : "it died";
}

Patience patience_here(const GroupView& view, const Patience& usual) {
  if (usual.spin_s == 0) return usual;
  const int processor = sched_getcpu() + 1;
  view.mine().processor.store(processor, std::memory_order_relaxed);
  for (int r = 0; r < view.size(); ++r) {
    if (r != view.rank && view.member(r).processor.load(std::memory_order_relaxed) == processor) {
      return Patience::of_shared_core();
    }
  }
  return usual;
}

GroupView join_group(const Segment& segment, const GroupKey& key, int rank) {
  const TableLock lock(segment.control(), key.world_ranks[static_cast<size_t>(rank)]);
  const int count = segment.control().group_count.load();
  GroupView view{.segment = &segment, .rank = rank};
  for (int i = 0; i < count && view.group == nullptr; ++i) {
    if (!matches(group_at(segment, i), key)) continue;
    view.group = &group_at(segment, i);
    view.index = i;
  }
  if (view.group == nullptr) {
    view.index = free_record(segment, static_cast<int>(key.world_ranks.size()));
    view.group = &group_at(segment, view.index);
    start_afresh(view, key);
  }
  view.mine().state.store(MemberState::present);
  return view;
}

GroupView world_view(const Segment& segment, int world_rank) {
  return {.segment = &segment, .group = &group_at(segment, 0), .index = 0, .rank = world_rank};
}

void leave_group(const GroupView& view) noexcept {
  view.mine().state.store(MemberState::departed);
  ring_members(*view.segment, *view.group);
  try {
    const TableLock lock(view.segment->control(), view.world_rank());
    if (++view.group->departed == view.group->size && view.group->parent >= 0) view.group->in_use.store(0);
  } catch (const Error&) {
    // A rank died holding the lock: the job is over and nobody needs the record.
  }
}

void fail_group(const GroupView& view, Failure::Kind kind, std::string_view message, int lost_world_rank) {
  Group& group = *view.group;
  FailureState none = FailureState::none;
  if (group.failure_state.compare_exchange_strong(none, FailureState::being_written)) {
    group.failure_kind = kind;
    group.failure_world_rank = view.world_rank();
    group.lost_world_rank = lost_world_rank;
    const size_t length = std::min(message.size(), sizeof group.failure_message - 1);
    std::memcpy(group.failure_message, message.data(), length);
    group.failure_message[length] = '\0';
    group.failure_state.store(FailureState::written);
  }
  ring_members(*view.segment, group);
}

void ring_members(const Segment& segment, Group& group) {
  const GroupView view{.segment = &segment, .group = &group};
  for (int r = 0; r < view.size(); ++r) {
    view.member(r).collective_bell.ring();
    view.member(r).message_bell.ring();
  }
}

std::string failure_recorded_by(const Segment& segment, int world_rank, int asking_world_rank) {
  const TableLock lock(segment.control(), asking_world_rank);
  for (int i = 0; i < segment.control().group_count.load(); ++i) {
    const Group& group = group_at(segment, i);
    const bool recorded = group.in_use.load() != 0 && group.failure_state.load() == FailureState::written;
    if (recorded && group.failure_world_rank == world_rank) return group.failure_message;
  }
  return "";
}

std::string calls_of_every_rank(const Segment& segment, int asking_world_rank) {
  const int world_size = segment.world_size();
  std::vector<std::vector<std::string>> calls(static_cast<size_t>(world_size));
  {
    const TableLock lock(segment.control(), asking_world_rank);
    for (int i = 0; i < segment.control().group_count.load(); ++i) {
      Group& group = group_at(segment, i);
      if (group.in_use.load() == 0) continue;
      const GroupView view{.segment = &segment, .group = &group, .index = i};
      for (int r = 0; r < group.size; ++r)
        add_calls_of_member(view, r, calls[static_cast<size_t>(group.world_ranks[r])]);
    }
  }
  std::vector<std::string> lines;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto& own = calls[static_cast<size_t>(rank)];
    const bool ended = segment.control().ranks[rank].state.load() != RankState::running;
    const std::string none = ended ? "has ended" : "is in no call";
    lines.push_back(text("rank ", rank, " ", own.empty() ? none : join(own, " and ")));
  }
  return join(lines, "; ");
}

}  // namespace lockstep::comm::host
