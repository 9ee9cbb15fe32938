#include "lockstep/comm/mpi/health.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/mpi/termination.h"

namespace lockstep::comm::mpi {

void Health::check(const Place* during) const {
  const uint64_t changes = board_.changes();
  if (changes == seen_changes_.load(std::memory_order_relaxed)) [[likely]]
    return;
  if (const auto recorded = board_.failure_of(group_)) raise_recorded(*recorded, during);
  seen_changes_.store(changes, std::memory_order_relaxed);
}

void Health::look_and_check() const {
  board_.service();
  check();
  const int lost = lost_member();
  if (lost >= 0) raise_lost(lost, nullptr);
}

bool Health::disturbed(const std::vector<int>& awaited, const Place& place) const {
  board_.service();
  if (abandoned_.load() || Termination::asked_for() || board_.failure_of(group_)) return true;
  return lost_member() >= 0 || std::ranges::any_of(awaited, [&](int member) { return gone(member, place); });
}

void Health::raise(host::WaitEnd end, const std::vector<int>& awaited, const Place& place,
                   const host::Deadline& deadline) const {
  if (end == host::WaitEnd::deadline) raise_deadline(awaited, place, deadline);
  if (abandoned_.load()) {
    throw InvalidArgument(text("rank ", group_.world_rank(), ": group '", group_.name, "' was destroyed during ",
                               text_of(place, group_), "; wait for its calls before destroying a group"));
  }
  const int lost = lost_member();
  board_.service();  // after that look: why a rank ended is said before it ends
  if (const auto recorded = board_.failure_of(group_)) raise_recorded(*recorded, &place);
  if (lost >= 0) raise_lost(lost, &place);
  for (const int member : awaited) {
    if (gone(member, place)) raise_lost(member, &place);
  }
  raise_termination(place);
}

void Health::fail(Failure::Kind kind, const std::string& message, int lost_world_rank) const {
  board_.fail(group_, {{kind, message}, group_.world_rank(), lost_world_rank});
  Failure{kind, message}.raise();
}

void Health::note(const Failure& failure) const {
  if (!abandoned_.load()) board_.fail(group_, {failure, group_.world_rank(), -1});
}

void Health::conclude(std::shared_ptr<Work::State> state, const Failure& failure) const {
  const bool unattended = state.use_count() == 1;
  state->complete(failure);
  if (unattended && !abandoned_.load() && !logged_.exchange(true)) log::error(failure.message);
}

int Health::lost_member() const {
  for (int member = 0; member < group_.size(); ++member) {
    if (member != group_.rank && board_.lost(group_.world_rank_of(member))) return member;
  }
  return -1;
}

bool Health::gone(int member, const Place& place) const {
  const std::optional<uint64_t> departed_after = board_.departed_after(group_, member);
  if (!departed_after) return !board_.end_of(group_.world_rank_of(member)).empty();
  const bool is_collective = place.kind == "call";
  return !place.announced && (!is_collective || *departed_after < place.number);
}

void Health::raise_recorded(const GroupFailure& recorded, const Place* during) const {
  for (int member = 0; member < group_.size(); ++member) {
    if (recorded.failure.kind == Failure::Kind::peer_lost && group_.world_rank_of(member) == recorded.lost &&
        member != group_.rank) {
      raise_lost(member, during);
    }
  }
  const bool own = recorded.origin == group_.world_rank();
  const std::string message =
      own ? recorded.failure.message
          : text("rank ", group_.world_rank(), ": group '", group_.name, "' has failed: ", recorded.failure.message);
  Failure{recorded.failure.kind, message}.raise();
}

void Health::raise_lost(int member, const Place* during) const {
  const int world_rank = group_.world_rank_of(member);
  std::string reason = board_.end_of(world_rank);
  if (reason.empty()) {
    reason = board_.departed_after(group_, member) ? "it has destroyed its group without making this call"
                                                   : "another rank saw it end";
  }
  fail(Failure::Kind::peer_lost,
       text("rank ", group_.world_rank(), ": rank ", world_rank, " was lost (", reason, ")",
            during != nullptr ? text(" during ", text_of(*during, group_))
                              : text(", a member of group '", group_.name, "'"),
            "; start the job again, from its last checkpoint if there is one"),
       world_rank);
}

void Health::raise_deadline(const std::vector<int>& awaited, const Place& place, const host::Deadline& deadline) const {
  std::vector<int> world_ranks;
  for (const int member : awaited) world_ranks.push_back(group_.world_rank_of(member));
  const std::string ranks = text(awaited.size() > 1 ? "ranks " : "rank ", join(world_ranks));
  const double elapsed_s = std::round(deadline.elapsed_s() * 100) / 100;
  fail(Failure::Kind::deadline_exceeded,
       text("rank ", group_.world_rank(), ": waited ", elapsed_s, " s for ", ranks, " in ", text_of(place, group_),
            ", ", place.call.bytes(), " bytes. Now ", board_.calls_of_every_rank(), ". See why ", ranks,
            awaited.size() > 1 ? " do" : " does", " not make this call, or allow a longer deadline"));
}

void Health::raise_termination(const Place& place) const {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {  // mpirun knows of a death before this rank does
    const int lost = lost_member();
    if (lost >= 0) raise_lost(lost, &place);
    usleep(10'000);
  }
  throw PeerLost(text("rank ", group_.world_rank(), ": told to end by SIGTERM during ", text_of(place, group_)));
}

}  // namespace lockstep::comm::mpi
