#include "lockstep/parallel/pipeline/stage_workers.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

class StageWorkers::Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void submit(std::function<at::Tensor()> work) {
    std::packaged_task<at::Tensor()> task(
        [work = std::move(work), state = at::ThreadLocalState(), threads = at::get_num_threads()] {
          const at::ThreadLocalStateGuard as_caller(state);
          if (at::get_num_threads() != threads) at::set_num_threads(threads);
          return work();
        });
    results_.push_back(task.get_future());
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  at::Tensor receive() {
    LOCKSTEP_CHECK(!results_.empty(), "received more than was submitted");
    std::future<at::Tensor> result = std::move(results_.front());
    results_.pop_front();
    return result.get();
  }

 private:
  void run() {
    for (;;) {
      std::packaged_task<at::Tensor()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::deque<std::future<at::Tensor>> results_;  // of the caller's thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<at::Tensor()>> tasks_;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the rest
};

StageWorkers::StageWorkers(int stages, std::function<void(const WorkerCall&)> on_call) : on_call_(std::move(on_call)) {
  if (stages < 1) throw InvalidArgument(Problem{"stages", text(stages), "must be at least 1", "1"}.message());
  for (int i = 0; i < stages; ++i) workers_.push_back(std::make_unique<Worker>());
}

StageWorkers::~StageWorkers() = default;

void StageWorkers::submit(int stage, std::function<at::Tensor()> work) {
  if (on_call_) on_call_({WorkerCall::Kind::submit, stage});
  workers_.at(static_cast<size_t>(stage))->submit(std::move(work));
}

at::Tensor StageWorkers::receive(int stage) {
  if (on_call_) on_call_({WorkerCall::Kind::receive, stage});
  return workers_.at(static_cast<size_t>(stage))->receive();
}

}  // namespace lockstep::parallel
