// The state behind a Work, shared by the caller and the thread that executes the call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

struct Work::State {
 public:
  virtual ~State() = default;
  void complete(Failure failure = {});
  bool done() const { return done_.load(std::memory_order_acquire); }
  // As of Work. Both throw the failure, if that is how the call ended. A call on a device overrides wait.
  virtual void wait() const { synchronize(); }
  virtual void synchronize() const;

 protected:
  // Throws the failure, if the call has ended with one already.
  void check() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable completed_;
  std::atomic<bool> done_{false};
  Failure failure_;  // does not change once it is done
};

}  // namespace lockstep::comm
