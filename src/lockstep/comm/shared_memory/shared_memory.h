// Ranks as processes of one host that share a memory file. Whoever starts the processes creates the world and passes
// its descriptor on; nothing else is needed to meet, so two jobs never can.
#pragma once

#include <chrono>
#include <memory>
#include <string>
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
//   watch   notice by itself that other ranks' processes end, as no launcher of ours does
//   throws  InvalidArgument when it is no such world or another process is that rank already
JoinedWorld join_shared_memory_world(int descriptor, int rank, bool watch = false);

// Ranks of one host that another launcher started: rank 0 makes the world and hands it to the others, who find it by
// the meeting's name.
struct Meeting {
  std::string name;         // the same for all ranks of the job, and for no other job on this host
  int rank = 0, ranks = 1;  // of those who meet
  // Where they are some of a larger world, with others on other hosts: their place in it. 0: they are the world.
  int world_rank = 0, world_size = 0;
  std::chrono::milliseconds deadline{600'000};  // for the others to come; also the groups' default
};
//   throws  DeadlineExceeded naming the ranks that did not come; InvalidArgument when a rank comes twice or another job
//           meets under that name
JoinedWorld meet_on_host(const Meeting& meeting);

}  // namespace lockstep::comm
