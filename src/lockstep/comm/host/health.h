// Notices that a group cannot go on, and says why: it has failed, a member died, an awaited member has left, or this
// rank is destroying its group.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/host/wait.h"
#include "lockstep/comm/host/world.h"
#include "lockstep/comm/work.h"

namespace lockstep::comm::host {

// The call that an error is about.
struct Place {
  CallInfo call;
  std::string_view kind = "call";  // or "message": they are numbered apart
  uint64_t number = 0;
};

class Health {
 public:
  explicit Health(const GroupView& view) : view_(view) {}

  // What this group's next call must throw, if anything.
  //   during  named in a PeerLost
  void check(const Place* during = nullptr) const {
    if (!nothing_happened()) [[unlikely]]
      look_closer(during);
  }
  // Two loads: check() throws nothing.
  bool nothing_happened() const {
    return view_.group->failure_state.load(std::memory_order_acquire) == FailureState::none &&
           view_.segment->control().alarm.load() == seen_alarm_.load(std::memory_order_relaxed);
  }

  // For wait_until: whether there may be a reason to give up waiting for `awaited` (a rank of the group).
  bool disturbed(int awaited) const;
  // After a wait that did not end well.
  [[noreturn]] void raise(WaitEnd end, const std::vector<int>& awaited, const Place& place,
                          const Deadline& deadline) const;
  // Fails the group and throws.
  [[noreturn]] void fail(Failure::Kind kind, const std::string& message, int lost_world_rank = -1) const;

  // Ends an asynchronous call with its failure. Says so in the log, once per group, if nobody holds its Work.
  void conclude(std::shared_ptr<Work::State> state, const Failure& failure) const;

  // From now on this rank's waits in the group end.
  void abandon();

  std::string text_of(const Place& place) const;

 private:
  void look_closer(const Place* during) const;
  int lost_member() const;  // -1: none
  bool gone(int member) const;
  [[noreturn]] void raise_recorded(const Place* during) const;
  [[noreturn]] void raise_lost(int member, const Place* during) const;
  [[noreturn]] void raise_deadline(const std::vector<int>& awaited, const Place& place, const Deadline& deadline) const;
  std::string ranks_text(const std::vector<int>& members) const;

  GroupView view_;
  mutable std::atomic<uint32_t> seen_alarm_{0};
  mutable std::atomic<bool> logged_{false};
  std::atomic<bool> abandoned_{false};
};

}  // namespace lockstep::comm::host
