// An NCCL communicator that never blocks: every call on it is polled, so that it can be given up.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/comm/nccl/cuda.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm::nccl {

// An error of NCCL; PeerLost where it is another rank's.
//   comm  whose last error is added; may be null
[[noreturn]] void raise_nccl(ncclResult_t result, ncclComm_t comm, std::string_view during);

class Communicator {
 public:
  struct Options {
    int device = 0;
    std::string name;         // of the group
    double deadline_s = 600;  // for each wait: for all ranks to come here, and for NCCL to accept a call
    // While it waits. Throws why the group cannot go on.
    std::function<void()> look;
  };

  // Meets the others. Every rank of `side`, a group in host memory, makes it at the same place.
  //   throws  DeadlineExceeded, PeerLost; Error for what NCCL says
  Communicator(ProcessGroup& side, Options options);
  // Ends what is under way.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int device() const { return options_.device; }
  cudaStream_t stream() const { return stream_.get(); }

  // Calls `enqueue`, which puts calls of NCCL on stream(), between the marks of one NCCL group, and waits until NCCL
  // has put all of it there. One thread at a time.
  //   during  for errors
  void enqueue(const std::function<void(ncclComm_t)>& enqueue, std::string_view during);
  // Throws what NCCL says about calls under way, if anything. Never waits.
  void look_for_errors();
  // Kernels under way end, wherever they are. Safe from any thread; calls after it throw.
  void abort() noexcept;

 private:
  void meet(ProcessGroup& side);
  // Until NCCL is ready for the next call.
  void settle(ncclResult_t result, double deadline_s, std::string_view during);
  bool finish() noexcept;

  const Options options_;
  const Stream stream_;
  std::mutex mutex_;  // of comm_
  std::atomic<bool> aborted_{false};
  ncclComm_t comm_ = nullptr;
};

}  // namespace lockstep::comm::nccl
