// For tests of the trainer: a group that leaves calls out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/comm/process_group.h"

namespace lockstep::train {

// What stands between a trainer and its group in a test: leaves out calls, on all ranks alike.
class LeavingOut final : public comm::ProcessGroup {
 public:
  using Predicate = std::function<bool(const comm::Call&)>;
  LeavingOut(comm::ProcessGroup& inner, const Predicate& leaves_out) : inner_(inner), leaves_out_(leaves_out) {}
  LeavingOut(std::unique_ptr<comm::ProcessGroup> inner, const Predicate& leaves_out)
      : owned_(std::move(inner)), inner_(*owned_), leaves_out_(leaves_out) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  std::string_view backend() const override { return inner_.backend(); }
  int world_rank(int group_rank) const override { return inner_.world_rank(group_rank); }
  void run(const comm::Call& call) override {
    if (!leaves_out_(call)) inner_.run(call);
  }
  comm::Work submit(const comm::Call& call) override { return leaves_out_(call) ? comm::Work() : inner_.submit(call); }
  std::unique_ptr<comm::ProcessGroup> split(std::span<const int> ranks, std::string_view name) override {
    return std::make_unique<LeavingOut>(inner_.split(ranks, name), leaves_out_);
  }
  comm::Registered allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  void check() const override { inner_.check(); }
  void set_rules(collective::RuleTable rules) override { inner_.set_rules(std::move(rules)); }
  collective::Traffic traffic() const override { return inner_.traffic(); }
  std::chrono::milliseconds default_deadline() const override { return inner_.default_deadline(); }
  void set_default_deadline(std::chrono::milliseconds deadline) override { inner_.set_default_deadline(deadline); }
  void set_flight_folder(std::string folder) override { inner_.set_flight_folder(std::move(folder)); }
  void set_recorder(trace::Recorder* recorder) override { inner_.set_recorder(recorder); }
  trace::Recorder* recorder() const override { return inner_.recorder(); }

 private:
  std::unique_ptr<comm::ProcessGroup> owned_;
  comm::ProcessGroup& inner_;
  Predicate leaves_out_;
};

}  // namespace lockstep::train
