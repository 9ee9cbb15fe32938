#include "lockstep/comm/nccl/watchdog.h"

#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::comm::nccl {
namespace {

using std::chrono::microseconds;

constexpr microseconds kPause(2000), kShortPause(20);  // between looks; the short one while a host waits
constexpr double kLongestExplanation_s = 0.5;          // that the launcher may take to say who died

}  // namespace

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    destroyed_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(std::shared_ptr<DeviceCall> call) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) failure_.raise();
    incoming_.push_back(std::move(call));
    if (!thread_.joinable()) thread_ = std::thread([this] { watch_all(); });
  }
  changed_.notify_one();
}

void Watchdog::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) failure_.raise();
}

void Watchdog::fail(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  options_.abort();
  changed_.notify_all();
}

void Watchdog::watch_all() {
  log::set_thread_rank(options_.world_rank);
  static_cast<void>(cudaSetDevice(options_.device));  // else the runtime makes a context on GPU 0 as well
  Calls calls;
  while (true) {
    Failure failure;
    {
      std::unique_lock lock(mutex_);
      if (calls.empty()) changed_.wait(lock, [this] { return destroyed_ || failure_ || !incoming_.empty(); });
      calls.insert(calls.end(), incoming_.begin(), incoming_.end());
      incoming_.clear();
      if (calls.empty() && (destroyed_ || failure_)) return;
      failure = failure_;
    }
    if (!failure) {
      failure = look_at(calls);
      if (failure) fail(failure);
    }
    if (failure) conclude_all(calls, failure);
    if (!calls.empty()) std::this_thread::sleep_for(hosts_waiting_->load() > 0 ? kShortPause : kPause);
  }
}

Failure Watchdog::look_at(Calls& calls) {
  try {
    for (const std::shared_ptr<DeviceCall>& call : calls) call->agreed();  // a later one may be why none ends
  } catch (...) {
    return Failure::of(std::current_exception());
  }
  try {
    while (!calls.empty() && calls.front()->has_ended()) {
      calls.front()->conclude();
      calls.pop_front();
    }
    if (calls.empty()) return {};
    options_.look();
    check_deadline(*calls.front());
  } catch (...) {
    return explained(Failure::of(std::current_exception())).during(calls.front()->place(), options_.world_rank);
  }
  return {};
}

void Watchdog::conclude_all(Calls& calls, const Failure& failure) {
  bool attended = calls.empty();
  for (const std::shared_ptr<DeviceCall>& call : calls) {
    attended = attended || call.use_count() > 1;
    call->conclude(failure);
  }
  calls.clear();
  if (!attended) log::error(failure.message);
}

void Watchdog::check_deadline(DeviceCall& call) const {
  if (!call.has_begun()) return;
  const double waited_s = now_s() - call.begun_s();
  // Ranks that do not make the call are the check's to name; its deadline is the same.
  if (waited_s <= call.deadline_s() || !call.agreed()) return;
  throw DeadlineExceeded(text(
      "waited ", std::round(waited_s * 100) / 100, " s for data of ", call.info().bytes(),
      " bytes. Every rank has made this call: see which GPU is still busy with what its stream holds before it, or "
      "whose link is down, or allow a longer deadline"));
}

// Another rank's death shows as an error of NCCL here before the launcher has said who died.
Failure Watchdog::explained(Failure failure) const {
  const double until_s = now_s() + kLongestExplanation_s;
  while ((failure.kind == Failure::Kind::error || failure.kind == Failure::Kind::peer_lost) && now_s() < until_s) {
    try {
      options_.look_at_host();
    } catch (...) {
      return Failure::of(std::current_exception());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return failure;
}

}  // namespace lockstep::comm::nccl
