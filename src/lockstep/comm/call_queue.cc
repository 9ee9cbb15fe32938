#include "lockstep/comm/call_queue.h"

#include <utility>

#include "lockstep/base/log.h"

namespace lockstep::comm {

CallQueue::~CallQueue() {
  {
    const std::lock_guard lock(mutex_);
    destroyed_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Work CallQueue::submit(const Call& call, double deadline_s, trace::Recorder* recorder) {
  auto state = std::make_shared<Work::State>();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({.call = call,
                      .tag = std::string(call.options.tag),
                      .algorithm = std::string(call.options.algorithm),
                      .input_counts = {call.input_counts.begin(), call.input_counts.end()},
                      .output_counts = {call.output_counts.begin(), call.output_counts.end()},
                      .deadline_s = deadline_s,
                      .recorder = recorder,
                      .state = state});
    pending_.fetch_add(1, std::memory_order_relaxed);
    if (!thread_.joinable()) thread_ = std::thread([this] { execute_all(); });
  }
  changed_.notify_one();
  return Work(std::move(state));
}

void CallQueue::execute_all() {
  log::set_thread_rank(options_.world_rank);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return destroyed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    execute(std::move(next));
    lock.lock();
  }
}

void CallQueue::execute(Queued next) {
  next.call.options.tag = next.tag;
  next.call.options.algorithm = next.algorithm;
  next.call.input_counts = next.input_counts;
  next.call.output_counts = next.output_counts;
  Failure failure;
  try {
    options_.execute(next.call, next.deadline_s, next.recorder);
  } catch (...) {
    failure = Failure::of(std::current_exception());
  }
  pending_.fetch_sub(1, std::memory_order_release);
  if (failure) {
    options_.fail(std::move(next.state), failure);
  } else {
    next.state->complete();
  }
}

}  // namespace lockstep::comm
