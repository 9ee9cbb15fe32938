// Notices that a group cannot go on, and says why: it has failed, a member died, an awaited member has left, mpirun
// ends the job, or this rank is destroying its group.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/host/wait.h"
#include "lockstep/comm/mpi/board.h"
#include "lockstep/comm/work.h"

namespace lockstep::comm::mpi {

class Health {
 public:
  Health(Board& board, const GroupIdentity& group) : board_(board), group_(group) {}

  // What this group's next call must throw, if anything is known.
  //   during  named in a PeerLost
  void check(const Place* during = nullptr) const;
  // Reads the notices first.
  void look_and_check() const;

  // Whether there may be a reason to give up waiting for these members. Reads the notices.
  bool disturbed(const std::vector<int>& awaited, const Place& place) const;
  // After a wait that did not end well.
  [[noreturn]] void raise(host::WaitEnd end, const std::vector<int>& awaited, const Place& place,
                          const host::Deadline& deadline) const;
  // Fails the group and throws.
  [[noreturn]] void fail(Failure::Kind kind, const std::string& message, int lost_world_rank = -1) const;
  // Fails the group with an error that is being thrown, unless it has failed.
  void note(const Failure& failure) const;

  // Ends an asynchronous call with its failure. Says so in the log, once per group, if nobody holds its Work.
  void conclude(std::shared_ptr<Work::State> state, const Failure& failure) const;

  // From now on this rank's waits in the group end.
  void abandon() { abandoned_.store(true); }

 private:
  int lost_member() const;  // -1: none
  // Without having made the call.
  bool gone(int member, const Place& place) const;
  [[noreturn]] void raise_recorded(const GroupFailure& recorded, const Place* during) const;
  [[noreturn]] void raise_lost(int member, const Place* during) const;
  [[noreturn]] void raise_deadline(const std::vector<int>& awaited, const Place& place,
                                   const host::Deadline& deadline) const;
  [[noreturn]] void raise_termination(const Place& place) const;

  Board& board_;
  const GroupIdentity& group_;
  mutable std::atomic<uint64_t> seen_changes_{0};
  mutable std::atomic<bool> logged_{false};
  std::atomic<bool> abandoned_{false};
};

}  // namespace lockstep::comm::mpi
