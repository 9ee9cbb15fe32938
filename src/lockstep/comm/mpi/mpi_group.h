// ProcessGroup over MPI.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/mpi/collectives.h"
#include "lockstep/comm/mpi/lane.h"
#include "lockstep/comm/mpi/messages.h"
#include "lockstep/comm/mpi/termination.h"

namespace lockstep::comm::mpi {

// What all groups of this process have in common. MPI ends, if all ends well, when the last of them is gone.
class Process {
 public:
  explicit Process(std::chrono::milliseconds longest_goodbye);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The first of four tags that no other group of this process has.
  //   throws  Unsupported if another group would have the same
  int take_tags(const GroupIdentity& group);
  void return_tags(int tag);
  // The ranks of this host meet in shared memory. Communicates: every rank makes it, with several hosts.
  void meet_on_this_host(std::chrono::milliseconds deadline);
  // Whether these ranks of the world have met.
  bool share_memory(std::span<const int32_t> world_ranks) const;

  Session session;
  Peers peers;
  Board board;
  FlightRecorder flight;
  // All ranks of the world, of which those of this host are there: for splitting groups of them. Null: none have met.
  std::unique_ptr<ProcessGroup> in_memory;

 private:
  Termination termination_;
  const std::chrono::milliseconds longest_goodbye_;
  std::mutex mutex_;
  std::map<int, std::string> groups_by_tag_;
};

class MpiGroup final : public ProcessGroup {
 public:
  // The group of all ranks, named "world".
  static std::unique_ptr<ProcessGroup> world(std::shared_ptr<Process> process, std::chrono::milliseconds deadline);
  // Calls that are not through fail.
  ~MpiGroup() override;

  int rank() const override { return identity_.rank; }
  int size() const override { return identity_.size(); }
  const std::string& name() const override { return identity_.name; }
  std::string_view backend() const override { return "mpi"; }
  int world_rank(int group_rank) const override;

  void run(const Call& call) override;
  Work submit(const Call& call) override;
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, std::string_view name) override;
  // Memory of this process, which MPI can send; with shared memory inside of hosts, of that.
  Registered allocate(int64_t bytes) override;
  void check() const override {
    flight_.watch([this] { health_.look_and_check(); });
  }

  std::chrono::milliseconds default_deadline() const override { return default_deadline_; }
  void set_rules(collective::RuleTable rules) override;
  collective::Traffic traffic() const override;
  void set_default_deadline(std::chrono::milliseconds deadline) override { default_deadline_ = deadline; }
  void set_flight_folder(std::string folder) override;
  void set_recorder(trace::Recorder* recorder) override { recorder_ = recorder; }
  trace::Recorder* recorder() const override { return recorder_; }

 private:
  MpiGroup(std::shared_ptr<Process> process, GroupIdentity identity);

  double deadline_s(const Call& call) const;
  Lane& lane_of(const Call& call);

  const std::shared_ptr<Process> process_;
  const GroupIdentity identity_;
  const FlightLog flight_;
  std::chrono::milliseconds default_deadline_{600'000};
  trace::Recorder* recorder_ = nullptr;
  std::map<std::string, uint64_t> splits_;  // how often each (ranks, name) was split

  Health health_;
  const GroupView view_;
  const Pace of_caller_;
  mutable std::mutex programs_mutex_;  // of one collective at a time; rules and traffic
  Programs programs_;
  Collectives collectives_;
  Messages messages_;
  std::mutex lanes_mutex_;
  std::unique_ptr<Lane> collective_lane_;
  std::map<std::pair<int, bool>, std::unique_ptr<Lane>> message_lanes_;  // by peer and whether it sends
};

}  // namespace lockstep::comm::mpi
