// Ranks as processes of one host that share a memory file. Whoever starts the processes creates the world and passes
// its descriptor on; nothing else is needed to meet, so two jobs never can.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

namespace host {
class Segment;
}

// The launcher's side; the launcher is no rank.
class SharedMemoryWorld {
 public:
  struct Options {
    int ranks = 1;
    std::chrono::milliseconds deadline{600'000};  // the groups' default
  };
  //   throws  InvalidArgument for an impossible number of ranks, Unsupported when the host gives no memory file
  explicit SharedMemoryWorld(const Options& options);

  // Closed on exec: the child that becomes a rank clears that flag.
  int descriptor() const;

  // The process of a rank has ended. Wakes every rank; those that share a group with a lost rank fail with PeerLost.
  void mark_left(int rank);
  void mark_lost(int rank, std::string_view reason);

 private:
  std::shared_ptr<host::Segment> segment_;
};

struct JoinedWorld {
  std::unique_ptr<ProcessGroup> group;
  int launcher = 0;  // its process
};

// Makes this process rank `rank` of the world behind `descriptor`, which is closed.
//   throws  InvalidArgument when it is no such world or another process is that rank already
JoinedWorld join_shared_memory_world(int descriptor, int rank);

}  // namespace lockstep::comm
