#include "lockstep/comm/in_process/in_process.h"

#include <mutex>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/comm/host/host_group.h"

namespace lockstep::comm {

struct InProcessWorld::Impl {
  std::shared_ptr<host::Segment> segment;
};

InProcessWorld::InProcessWorld(int ranks, const InProcessOptions& options)
    : impl_(std::make_unique<Impl>(host::Segment::create({.ranks = ranks, .default_deadline = options.deadline}))) {}

InProcessWorld::~InProcessWorld() = default;

std::unique_ptr<ProcessGroup> InProcessWorld::join(int rank) {
  return host::HostGroup::world(std::make_shared<const host::Rank>(impl_->segment, rank, nullptr, "in_process"));
}

void InProcessWorld::mark_lost(int rank, std::string_view reason) {
  host::mark_ended(*impl_->segment, rank, host::RankState::lost, reason);
}

namespace {

// What one rank threw, the earliest first; PeerLost only tells of another rank's end.
class FirstError {
 public:
  void add(std::exception_ptr error, bool is_consequence) {
    const std::lock_guard lock(mutex_);
    if (error_ && (is_consequence || !error_is_consequence_)) return;
    error_ = std::move(error);
    error_is_consequence_ = is_consequence;
  }
  void rethrow_if_any() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool error_is_consequence_ = false;
};

}  // namespace

void run_ranks(int ranks, const InProcessOptions& options, const std::function<void(ProcessGroup&)>& body) {
  InProcessWorld world(ranks, options);
  FirstError first_error;
  const auto run_rank = [&](int rank) {
    log::set_thread_rank(rank);
    try {
      const std::unique_ptr<ProcessGroup> group = world.join(rank);
      try {
        body(*group);
      } catch (...) {  // before the group's end tells the others that this rank left well
        const Failure failure = Failure::of(std::current_exception());
        world.mark_lost(rank, text("it ended with an error: ", failure.message));
        throw;
      }
    } catch (const PeerLost&) {
      first_error.add(std::current_exception(), true);
    } catch (...) {
      first_error.add(std::current_exception(), false);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  first_error.rethrow_if_any();
}

std::unique_ptr<ProcessGroup> single_rank(const InProcessOptions& options) {
  return host::HostGroup::world(std::make_shared<const host::Rank>(
      host::Segment::create({.ranks = 1, .default_deadline = options.deadline}), 0, nullptr, "in_process"));
}

}  // namespace lockstep::comm
