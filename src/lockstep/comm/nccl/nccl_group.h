// ProcessGroup over NCCL, beside a group of the same ranks in host memory.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/comm/call_check.h"
#include "lockstep/comm/nccl/communicator.h"
#include "lockstep/comm/nccl/watchdog.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm::nccl {

class NcclGroup final : public ProcessGroup {
 public:
  explicit NcclGroup(std::unique_ptr<ProcessGroup> host);
  // Waits for the calls under way; aborts them if the rank is ending with an error.
  ~NcclGroup() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  std::string_view backend() const override { return "nccl"; }
  int world_rank(int group_rank) const override { return host_->world_rank(group_rank); }

  void run(const Call& call) override;
  Work submit(const Call& call) override;
  void run_batch(std::span<const Call> calls) override;
  // On GPUs one group of NCCL's.
  std::vector<Work> submit_batch(std::span<const Call> calls) override;
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, std::string_view name) override;
  // In host memory; a GPU's needs no registering.
  Registered allocate(int64_t bytes) override { return host_->allocate(bytes); }
  void check() const override;

  std::chrono::milliseconds default_deadline() const override { return host_->default_deadline(); }
  void set_rules(collective::RuleTable rules) override { host_->set_rules(std::move(rules)); }
  collective::Traffic traffic() const override { return host_->traffic(); }
  void set_default_deadline(std::chrono::milliseconds deadline) override { host_->set_default_deadline(deadline); }
  void set_flight_folder(std::string folder) override { host_->set_flight_folder(std::move(folder)); }
  void set_recorder(trace::Recorder* recorder) override { host_->set_recorder(recorder); }
  trace::Recorder* recorder() const override { return host_->recorder(); }

 private:
  // What the first call on a GPU makes.
  struct OnDevice {
    OnDevice(ProcessGroup& host, int device, double deadline_s);

    CallCheck check;
    Communicator communicator;
    Watchdog watchdog;  // last: its thread uses the rest
  };

  std::chrono::milliseconds deadline(const Call& call) const;
  void refuse_what_nccl_cannot(const Call& call) const;
  // The GPU of the group, which that of these calls must be.
  int device_of(std::span<const Call> calls) const;
  std::vector<Work> put(std::span<const Call> calls, int device);

  const std::unique_ptr<ProcessGroup> host_;
  mutable std::mutex mutex_;  // of the order in which calls are put on the stream
  std::unique_ptr<OnDevice> on_device_;
};

}  // namespace lockstep::comm::nccl
