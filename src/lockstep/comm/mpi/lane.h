// Calls that must be executed in order: on the caller's thread when none is queued, else by a thread of the lane's own,
// which is made when first needed and sleeps when idle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/mpi/health.h"
#include "lockstep/comm/mpi/poll.h"

namespace lockstep::trace {
class Recorder;
}

namespace lockstep::comm::mpi {

class Lane {
 public:
  using Execute = std::function<void(const Call& call, double deadline_s, const Pace& pace)>;

  Lane(const Health& health, const Pace& of_caller, int world_rank, Execute execute);
  // `health` has been abandoned: calls under way fail.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void run(const Call& call, double deadline_s, trace::Recorder* recorder);
  Work submit(const Call& call, double deadline_s, trace::Recorder* recorder);

 private:
  struct Queued {
    Call call;
    std::string tag;  // call.options.tag points here, and call's counts to the two below
    std::vector<int64_t> input_counts, output_counts;
    double deadline_s = 0;
    trace::Recorder* recorder = nullptr;
    std::shared_ptr<Work::State> state;
  };

  void execute(const Call& call, double deadline_s, trace::Recorder* recorder, const Pace& pace);
  void execute_queue();

  const Health& health_;
  const Pace of_caller_;
  const int world_rank_;
  const Execute execute_;
  std::mutex execution_;  // of one call at a time

  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<Queued> queue_;
  std::atomic<int> pending_{0};  // queued or under way
  bool destroyed_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm::mpi
