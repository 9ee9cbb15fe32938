// A call under way on a GPU.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "lockstep/comm/call_check.h"
#include "lockstep/comm/nccl/cuda.h"
#include "lockstep/comm/work.h"

namespace lockstep::comm::nccl {

// Where in the group's stream a call, or a batch of them, begins and ends.
struct Span {
  Event begin, end;
};

// The streams that a call's memory on GPUs comes from, each once.
std::vector<cudaStream_t> streams_of(const Call& call);

class DeviceCall final : public Work::State {
 public:
  struct Options {
    CallCheck::Pending check;
    std::shared_ptr<const Span> span;
    double deadline_s = 0;
    trace::Recorder* recorder = nullptr;
    std::shared_ptr<std::atomic<int>> hosts_waiting;  // of the group: while there are any its watchdog hurries
  };
  DeviceCall(const Call& call, Options options);

  // Makes the streams that the call came from wait for its end.
  void wait() const override;
  void synchronize() const override;

  // "all_reduce(sum) of 1024 f32 (call 3 on group 'dp')"
  std::string place() const { return options_.check.place(); }
  const CallInfo& info() const { return info_; }
  double deadline_s() const { return options_.deadline_s; }

  // -- of the watchdog's thread --------------------------------------------------------------------------------------
  // Whether all ranks are known to make the same call. Throws what CallCheck::Pending::conclude does.
  bool agreed();
  // Whether its turn in the stream has come; since when, as far as anybody looked.
  bool has_begun();
  double begun_s() const { return begun_s_; }
  // Whether the data is there, as every rank meant it.
  bool has_ended() { return agreed() && has_begun() && options_.span->end.passed(); }
  // Lets the memory go, records the call, and completes its Work.
  void conclude(const Failure& failure = {});

 private:
  const CallInfo info_;
  const Options options_;
  std::vector<cudaStream_t> streams_;              // of the caller
  std::vector<std::shared_ptr<const void>> kept_;  // alive until the call is done
  bool agreed_ = false;
  double begun_s_ = 0;
};

}  // namespace lockstep::comm::nccl
