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
  int tag = 0;  // the first of four that are this group's alone
};

enum class Stream : int { announcements, data, message_headers, message_data };

// One call as it is being executed.
struct Execution {
  Place& place;
  const Pace& pace;
  host::Deadline& deadline;
};

class Transfer {
 public:
  Transfer(const GroupView& group, Stream stream) : group_(group), stream_(stream) {}
  // Receives that have not been waited for are given up.
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Any size; nothing is sent for 0 bytes. Both sides name the same size.
  void send(int member, const void* data, int64_t bytes);
  void receive(int member, void* data, int64_t bytes);

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
  struct Part {
    Pending pending;
    int member = -1;
    bool receives = false;
  };

  const GroupView& group_;
  const Stream stream_;
  std::vector<Part> parts_;  // under way
};

template <class Arrived>
bool Transfer::test(Arrived arrived) {
  for (size_t i = 0; i < parts_.size();) {
    if (!group_.session.test(parts_[i].pending)) {
      ++i;
      continue;
    }
    const Part through = parts_[i];
    parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(i));
    if (through.receives) arrived(through.member);
  }
  return parts_.empty();
}

template <class Arrived>
void Transfer::wait(const Execution& execution, Arrived arrived) {
  const host::WaitEnd end = poll_until(
      execution.pace, execution.deadline, [&] { return test(arrived); },
      [&] { return group_.health.disturbed(awaited(), execution.place); });
  if (end != host::WaitEnd::ready) group_.health.raise(end, awaited(), execution.place, execution.deadline);
}

}  // namespace lockstep::comm::mpi
