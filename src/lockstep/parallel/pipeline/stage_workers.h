// A thread for each stage of a pipeline in one process. A stage's work is done in the order in which it was submitted,
// and its results are received in that order; different stages work at the same time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace lockstep::parallel {

// What was asked of the workers, in order.
struct WorkerCall {
  enum class Kind { submit, receive } kind = Kind::submit;
  int stage = 0;
  bool operator==(const WorkerCall&) const = default;
};

class StageWorkers {
 public:
  // `on_call` sees every submit and receive, in the caller's thread; may be empty.
  //   throws   InvalidArgument for less than one stage
  explicit StageWorkers(int stages, std::function<void(const WorkerCall&)> on_call = {});
  // Finishes what was submitted, then joins the threads.
  ~StageWorkers();
  StageWorkers(const StageWorkers&) = delete;
  StageWorkers& operator=(const StageWorkers&) = delete;

  // Runs `work` in the stage's thread, under what the calling thread has at this moment: gradient and inference mode,
  // autocast, and the number of intra-op threads are per thread.
  void submit(int stage, std::function<at::Tensor()> work);
  // Waits for the stage's oldest result that was not received. What its work threw is thrown here, unchanged. To be
  // called as often as submit.
  at::Tensor receive(int stage);

 private:
  class Worker;
  std::function<void(const WorkerCall&)> on_call_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace lockstep::parallel
