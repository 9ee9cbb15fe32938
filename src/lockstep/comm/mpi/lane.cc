#include "lockstep/comm/mpi/lane.h"

#include "lockstep/base/log.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::comm::mpi {
namespace {

void record(trace::Recorder& recorder, const Call& call, double start_s) {
  std::string event(name(call.operation));
  if (!call.options.tag.empty()) event.append(" ").append(call.options.tag);
  recorder.record(trace::Track::communication, event, start_s, now_s(), info_of(call).bytes());
}

}  // namespace

Lane::Lane(const Health& health, const Pace& of_caller, int world_rank, Execute execute)
    : health_(health), of_caller_(of_caller), world_rank_(world_rank), execute_(std::move(execute)) {}

Lane::~Lane() {
  {
    const std::lock_guard lock(queue_mutex_);
    destroyed_ = true;
  }
  queue_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Lane::run(const Call& call, double deadline_s, trace::Recorder* recorder) {
  if (pending_.load(std::memory_order_acquire) == 0) {
    execute(call, deadline_s, recorder, of_caller_);
  } else {
    submit(call, deadline_s, recorder).wait();
  }
}

Work Lane::submit(const Call& call, double deadline_s, trace::Recorder* recorder) {
  const Place place{.call = info_of(call), .kind = "queued call"};
  health_.check(&place);
  auto state = std::make_shared<Work::State>();
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back({.call = call,
                      .tag = std::string(call.options.tag),
                      .input_counts = {call.input_counts.begin(), call.input_counts.end()},
                      .output_counts = {call.output_counts.begin(), call.output_counts.end()},
                      .deadline_s = deadline_s,
                      .recorder = recorder,
                      .state = state});
    pending_.fetch_add(1, std::memory_order_relaxed);
    if (!thread_.joinable()) thread_ = std::thread([this] { execute_queue(); });
  }
  queue_changed_.notify_one();
  return Work(std::move(state));
}

void Lane::execute(const Call& call, double deadline_s, trace::Recorder* recorder, const Pace& pace) {
  const std::lock_guard lock(execution_);
  const double start_s = recorder != nullptr ? now_s() : 0;
  execute_(call, deadline_s, pace);
  if (recorder != nullptr) record(*recorder, call, start_s);
}

void Lane::execute_queue() {
  log::set_thread_rank(world_rank_);
  std::unique_lock lock(queue_mutex_);
  while (true) {
    queue_changed_.wait(lock, [this] { return destroyed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    next.call.options.tag = next.tag;
    next.call.input_counts = next.input_counts;
    next.call.output_counts = next.output_counts;
    Failure failure;
    try {
      execute(next.call, next.deadline_s, next.recorder, Pace::of_thread());
    } catch (...) {
      failure = Failure::of(std::current_exception());
    }
    pending_.fetch_sub(1, std::memory_order_release);
    if (failure) {
      health_.conclude(std::move(next.state), failure);
    } else {
      next.state->complete();
    }
    lock.lock();
  }
}

}  // namespace lockstep::comm::mpi
