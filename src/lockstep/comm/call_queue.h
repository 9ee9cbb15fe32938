// Calls that wait for their turn. They are executed one after the other by a thread of the queue's own, which is made
// when the first call comes and sleeps when none is there. Shared by the backends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/work.h"

namespace lockstep::comm {

class CallQueue {
 public:
  struct Options {
    int world_rank = 0;  // whose lines the thread writes to the log
    // On the queue's thread. Throws what the call fails with.
    std::function<void(const Call& call, double deadline_s, trace::Recorder* recorder)> execute;
    // Completes the work of a call that failed.
    std::function<void(std::shared_ptr<Work::State> state, const Failure& failure)> fail;
  };

  explicit CallQueue(Options options) : options_(std::move(options)) {}
  // Waits for the calls that are queued; the owner has seen to it that they end.
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // Nothing is queued or under way: a call may be made on the caller's thread without overtaking another.
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }

  // Copies what the call points to, but for its buffers.
  Work submit(const Call& call, double deadline_s, trace::Recorder* recorder);

 private:
  struct Queued {
    Call call;
    std::string tag, algorithm;  // call.options point here, and call's counts to the two below
    std::vector<int64_t> input_counts, output_counts;
    double deadline_s = 0;
    trace::Recorder* recorder = nullptr;
    std::shared_ptr<Work::State> state;
  };

  void execute_all();
  void execute(Queued next);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_;
  std::atomic<int> pending_{0};  // queued or under way
  bool destroyed_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
