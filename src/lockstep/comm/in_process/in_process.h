// Ranks as threads of one process: for tests, for verify, and for a world of one. Failures are as between processes,
// except that a thread cannot be killed.
//
//   run_ranks(4, {}, [](ProcessGroup& world) { world.all_reduce(...); });
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

struct InProcessOptions {
  std::chrono::milliseconds deadline{600'000};  // the groups' default
};

// The world groups of `ranks` ranks, one for each thread that will be a rank. A rank has left when its groups are
// destroyed.
//   throws  InvalidArgument for an impossible number of ranks
class InProcessWorld {
 public:
  explicit InProcessWorld(int ranks, const InProcessOptions& options = {});
  ~InProcessWorld();
  InProcessWorld(const InProcessWorld&) = delete;
  InProcessWorld& operator=(const InProcessWorld&) = delete;

  // Once for each rank.
  std::unique_ptr<ProcessGroup> join(int rank);
  // The rank ended with an error: every group that it is in fails with PeerLost.
  void mark_lost(int rank, std::string_view reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs `body` as each rank, in a thread of its own, and returns when all have ended. If some threw, the error that came
// first, and was not merely a consequence of another rank's end, is thrown again.
void run_ranks(int ranks, const InProcessOptions& options, const std::function<void(ProcessGroup&)>& body);

// A world of one rank, the caller.
std::unique_ptr<ProcessGroup> single_rank(const InProcessOptions& options = {});

}  // namespace lockstep::comm
