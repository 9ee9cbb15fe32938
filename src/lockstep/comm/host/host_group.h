// A group of ranks on one host, as threads or as processes: ProcessGroup over the memory that they share.
#pragma once

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/comm/call_queue.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/host/arena.h"
#include "lockstep/comm/host/collectives.h"
#include "lockstep/comm/host/messages.h"
#include "lockstep/comm/host/watch.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm::host {

// What all groups of one rank have in common. The rank has left the world when the last of them is gone.
class Rank {
 public:
  //   arena  where allocate() takes memory; null: from the heap, which all ranks reach
  Rank(std::shared_ptr<Segment> segment, int world_rank, std::shared_ptr<Arena> arena, std::string_view backend)
      : segment(std::move(segment)),
        world_rank(world_rank),
        arena(std::move(arena)),
        backend(backend),
        flight(world_rank) {}
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const std::shared_ptr<Segment> segment;
  const int world_rank;
  const std::shared_ptr<Arena> arena;
  const std::string_view backend;
  mutable FlightRecorder flight;
  std::unique_ptr<Watch> watch;  // null: a launcher watches
};

// Joins a group for as long as it lives.
struct Membership {
  Membership(const Segment& segment, const GroupKey& key, int rank) : view(join_group(segment, key, rank)) {}
  ~Membership() { leave_group(view); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const GroupView view;
};

class HostGroup final : public ProcessGroup {
 public:
  // The group of all ranks, named "world".
  static std::unique_ptr<ProcessGroup> world(std::shared_ptr<const Rank> rank);
  // Calls that are not through fail.
  ~HostGroup() override;

  int rank() const override { return view_.rank; }
  int size() const override { return view_.size(); }
  const std::string& name() const override { return name_; }
  std::string_view backend() const override { return owner_->backend; }
  int world_rank(int group_rank) const override;

  void run(const Call& call) override;
  Work submit(const Call& call) override;
  void run_batch(std::span<const Call> calls) override;
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, std::string_view name) override;
  Registered allocate(int64_t bytes) override;
  void check() const override;

  std::chrono::milliseconds default_deadline() const override {
    return std::chrono::milliseconds(std::llround(default_deadline_s_ * 1000));
  }
  void set_rules(collective::RuleTable rules) override;
  collective::Traffic traffic() const override;
  void set_default_deadline(std::chrono::milliseconds deadline) override {
    default_deadline_s_ = std::chrono::duration<double>(deadline).count();
  }
  void set_flight_folder(std::string folder) override { owner_->flight.set_folder(std::move(folder)); }
  void set_recorder(trace::Recorder* recorder) override { recorder_ = recorder; }
  trace::Recorder* recorder() const override { return recorder_; }

 private:
  HostGroup(std::shared_ptr<const Rank> owner, const GroupKey& key, int rank);

  double deadline_s(const Call& call) const;
  void execute(const Call& call, double deadline_s, trace::Recorder* recorder, const Patience& patience);

  const std::shared_ptr<const Rank> owner_;
  const std::string name_;
  const FlightLog flight_;
  const Membership membership_;
  const GroupView& view_ = membership_.view;
  const Patience of_caller_, of_thread_;
  double default_deadline_s_;
  trace::Recorder* recorder_ = nullptr;
  std::map<std::string, uint64_t> splits_;  // how often each (ranks, name) was split

  Health health_, world_health_;
  Programs programs_;
  Messages messages_;

  mutable std::mutex execution_;  // of one collective at a time; rules and traffic
  Collectives collectives_;

  std::atomic<uint64_t> submitted_{0};  // ever
  CallQueue queue_;                     // last: its thread uses the rest
};

}  // namespace lockstep::comm::host
