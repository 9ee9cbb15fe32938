// Looks after the calls of one group that are under way on its GPU, from a thread that is made with the first of them
// and sleeps while there are none: it sees them end, sees why they cannot, and then ends them all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "lockstep/comm/nccl/device_call.h"

namespace lockstep::comm::nccl {

class Watchdog {
 public:
  struct Options {
    int world_rank = 0;
    int device = 0;
    std::function<void()> look;          // throws why calls under way will not end: NCCL's errors, ranks that died
    std::function<void()> look_at_host;  // the same, but only what the host group knows
    std::function<void()> abort;         // makes kernels under way end
  };
  explicit Watchdog(Options options) : options_(std::move(options)) {}
  // Waits for the calls; they end at their deadlines at the latest.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void watch(std::shared_ptr<DeviceCall> call);
  // Throws what the group has failed with.
  void check() const;
  // The first failure wins. Ends every call with it.
  void fail(const Failure& failure);

  const std::shared_ptr<std::atomic<int>>& hosts_waiting() const { return hosts_waiting_; }

 private:
  using Calls = std::deque<std::shared_ptr<DeviceCall>>;

  void watch_all();
  // Ends those that are through, in their order. Returns why the rest will not be.
  Failure look_at(Calls& calls);
  void check_deadline(DeviceCall& call) const;
  Failure explained(Failure failure) const;
  static void conclude_all(Calls& calls, const Failure& failure);

  const Options options_;
  const std::shared_ptr<std::atomic<int>> hosts_waiting_ = std::make_shared<std::atomic<int>>(0);
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Calls incoming_;
  bool destroyed_ = false;
  Failure failure_;
  std::thread thread_;
};

}  // namespace lockstep::comm::nccl
