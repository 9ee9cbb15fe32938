// Messages of one call between members of a group, under way together.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/mpi/health.h"
#include "lockstep/comm/mpi/poll.h"
#include "lockstep/comm/mpi/session.h"

namespace lockstep::comm::mpi {

// What all calls of a group need.
struct GroupView {
  Session& session;
  const GroupIdentity& identity;
  Health& health;
  const Peers& peers;
  int tag = 0;  // the first of four that are this group's alone

  bool on_this_host(int member) const {
    return peers.host_of(identity.world_rank_of(member)) == peers.host_of(identity.world_rank());
  }
};

enum class Stream : int { announcements, data, message_headers, message_data };

// One call as it is being executed.
struct Execution {
  Place& place;
  const Pace& pace;
  host::Deadline& deadline;
};

// Between hosts a step of a program (Stream::data) travels in segments that MPI sends without asking the receiver
// first. It would ask, and be answered, in line behind the data that goes each way over the same connection, so that
// two ranks that exchange long messages would send one after the other. The receiver is in the same call; what comes
// for a later round of it is kept by MPI meanwhile, at most the data of the call.
class Transfer {
 public:
  Transfer(const GroupView& group, Stream stream);
  // Receives that have not been waited for are given up.
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Any size; nothing is sent for 0 bytes. Both sides name the same size.
  void send(int member, const void* data, int64_t bytes) { add(member, false, const_cast<void*>(data), bytes); }
  void receive(int member, void* data, int64_t bytes) { add(member, true, data, bytes); }

  // Tests what is under way, and calls arrived(member) for each receive that has come.
  template <class Arrived>
  bool test(Arrived arrived);
  bool test() {
    return test([](int) {});
  }
  // Members whose messages are not through.
  std::vector<int> awaited() const;

  // Until all is through.
  //   throws  what Health::raise does
  template <class Arrived>
  void wait(const Execution& execution, Arrived arrived);
  void wait(const Execution& execution) {
    wait(execution, [](int) {});
  }

 private:
  // The segments of one direction to or from one member; they arrive in order.
  struct Lane {
    struct Segment {
      char* data = nullptr;
      int64_t bytes = 0;
      bool is_last = false;  // of its message
      Pending pending{};
    };
    int member = -1;
    bool receives = false;
    std::vector<Segment> segments;
    size_t through = 0, started = 0;  // the first so many of them

    bool is_through() const { return through == segments.size(); }
  };

  void add(int member, bool receives, void* data, int64_t bytes);
  int64_t longest_segment(int member) const;
  void start_segments(Lane& lane);

  const GroupView& group_;
  const Stream stream_;
  std::vector<Lane> lanes_;
};

template <class Arrived>
bool Transfer::test(Arrived arrived) {
  bool all_through = true;
  for (Lane& lane : lanes_) {
    while (lane.through < lane.started && group_.session.test(lane.segments[lane.through].pending)) {
      const bool is_last = lane.segments[lane.through].is_last;
      ++lane.through;
      start_segments(lane);
      if (is_last && lane.receives) arrived(lane.member);
    }
    all_through = all_through && lane.is_through();
  }
  return all_through;
}

template <class Arrived>
void Transfer::wait(const Execution& execution, Arrived arrived) {
  const host::WaitEnd end = poll_until(
      execution.pace, execution.deadline, [&] { return test(arrived); },
      [&] { return group_.health.disturbed(awaited(), execution.place); });
  if (end != host::WaitEnd::ready) group_.health.raise(end, awaited(), execution.place, execution.deadline);
}

}  // namespace lockstep::comm::mpi
