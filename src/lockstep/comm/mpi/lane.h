// Calls that must be executed in order: on the caller's thread when none is queued, else by the thread of a queue.
#pragma once

#include <functional>
#include <mutex>

#include "lockstep/comm/call_queue.h"
#include "lockstep/comm/mpi/health.h"
#include "lockstep/comm/mpi/poll.h"

namespace lockstep::comm::mpi {

class Lane {
 public:
  using Execute = std::function<void(const Call& call, double deadline_s, const Pace& pace)>;

  // When it is destroyed, `health` has been abandoned: calls under way fail.
  Lane(const Health& health, const Pace& of_caller, int world_rank, Execute execute);

  void run(const Call& call, double deadline_s, trace::Recorder* recorder);
  Work submit(const Call& call, double deadline_s, trace::Recorder* recorder);

 private:
  void execute(const Call& call, double deadline_s, trace::Recorder* recorder, const Pace& pace);

  const Health& health_;
  const Pace of_caller_;
  const Execute execute_;
  std::mutex execution_;  // of one call at a time
  CallQueue queue_;       // last: its thread uses the rest
};

}  // namespace lockstep::comm::mpi
