#include "lockstep/comm/host/health.h"

#include <sched.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::comm::host {

void Health::look_closer(const Place* during) const {
  if (view_.group->failure_state.load(std::memory_order_acquire) != FailureState::none) raise_recorded(during);
  const uint32_t alarm = view_.segment->control().alarm.load();
  const int lost = lost_member();
  if (lost >= 0) raise_lost(lost, during);
  seen_alarm_.store(alarm, std::memory_order_relaxed);
}

bool Health::disturbed(int awaited) const {
  if (view_.group->failure_state.load() != FailureState::none || abandoned_.load()) return true;
  const uint32_t alarm = view_.segment->control().alarm.load();
  if (alarm != seen_alarm_.load(std::memory_order_relaxed)) {
    if (lost_member() >= 0) return true;
    seen_alarm_.store(alarm, std::memory_order_relaxed);
  }
  return gone(awaited);
}

void Health::raise(WaitEnd end, const std::vector<int>& awaited, const Place& place, const Deadline& deadline) const {
  if (end == WaitEnd::deadline) raise_deadline(awaited, place, deadline);
  if (abandoned_.load()) {
    throw InvalidArgument(text("rank ", view_.world_rank(), ": group '", view_.group->name, "' was destroyed during ",
                               text_of(place), "; wait for its calls before destroying a group"));
  }
  check(&place);
  for (const int member : awaited) {
    if (gone(member)) raise_lost(member, &place);
  }
  raise_recorded(&place);
}

void Health::fail(Failure::Kind kind, const std::string& message, int lost_world_rank) const {
  fail_group(view_, kind, message, lost_world_rank);
  Failure{kind, message}.raise();
}

void Health::conclude(std::shared_ptr<Work::State> state, const Failure& failure) const {
  const bool unattended = state.use_count() == 1;
  state->complete(failure);
  if (unattended && !abandoned_.load() && !logged_.exchange(true)) log::error(failure.message);
}

void Health::abandon() {
  abandoned_.store(true);
  ring_members(*view_.segment, *view_.group);
}

std::string Health::text_of(const Place& place) const {
  return text(describe(place.call, view_.world_ranks()), " (", place.kind, " ", place.number, " on group '",
              view_.group->name, "')");
}

int Health::lost_member() const {
  for (int r = 0; r < view_.size(); ++r) {
    if (view_.segment->control().ranks[view_.world_ranks()[static_cast<size_t>(r)]].state.load() == RankState::lost) {
      return r;
    }
  }
  return -1;
}

bool Health::gone(int member) const {
  const int world_rank = view_.world_ranks()[static_cast<size_t>(member)];
  return view_.member(member).state.load() == MemberState::departed ||
         view_.segment->control().ranks[world_rank].state.load() != RankState::running;
}

void Health::raise_recorded(const Place* during) const {
  const Group& group = *view_.group;
  const double start_s = now_s();
  while (group.failure_state.load() != FailureState::written) {  // the writer may have been killed in between
    if (now_s() - start_s > 0.1)
      throw PeerLost(text("rank ", view_.world_rank(), ": group '", group.name, "' has failed"));
    sched_yield();
  }
  for (int r = 0; r < view_.size() && group.failure_kind == Failure::Kind::peer_lost; ++r) {
    if (view_.world_ranks()[static_cast<size_t>(r)] == group.lost_world_rank) raise_lost(r, during);
  }
  const bool own = group.failure_world_rank == view_.world_rank();
  const std::string message =
      own ? group.failure_message
          : text("rank ", view_.world_rank(), ": group '", group.name, "' has failed: ", group.failure_message);
  Failure{group.failure_kind, message}.raise();
}

void Health::raise_lost(int member, const Place* during) const {
  const int world_rank = view_.world_ranks()[static_cast<size_t>(member)];
  std::string reason = reason_of_end(*view_.segment, world_rank);
  if (reason.empty()) reason = "it has destroyed its group without making this call";
  // Whoever leaves because another group failed says there what went wrong.
  const std::string cause = failure_recorded_by(*view_.segment, world_rank, view_.world_rank());
  if (!cause.empty() && reason.find(cause) == std::string::npos) reason += text(", after ", cause);
  fail(Failure::Kind::peer_lost,
       text("rank ", view_.world_rank(), ": rank ", world_rank, " was lost (", reason, ")",
            during != nullptr ? text(" during ", text_of(*during))
                              : text(", a member of group '", view_.group->name, "'"),
            "; start the job again, from its last checkpoint if there is one"),
       world_rank);
}

void Health::raise_deadline(const std::vector<int>& awaited, const Place& place, const Deadline& deadline) const {
  const std::string ranks = ranks_text(awaited);
  const double elapsed_s = std::round(deadline.elapsed_s() * 100) / 100;
  fail(Failure::Kind::deadline_exceeded,
       text("rank ", view_.world_rank(), ": waited ", elapsed_s, " s for ", ranks, " in ", text_of(place), ", ",
            place.call.bytes(), " bytes. Now ", calls_of_every_rank(*view_.segment, view_.world_rank()), ". See why ",
            ranks, awaited.size() > 1 ? " do" : " does", " not make this call, or allow a longer deadline"));
}

std::string Health::ranks_text(const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(view_.world_ranks()[static_cast<size_t>(member)]);
  return text(ranks.size() > 1 ? "ranks " : "rank ", join(ranks));
}

}  // namespace lockstep::comm::host
