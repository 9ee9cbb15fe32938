// Compares the calls that ranks make off the path of their data: for backends that move memory of devices and have no
// place for a fingerprint in it. The fingerprints travel over a group in host memory, while the data is under way.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "lockstep/comm/call_info.h"

namespace lockstep::comm {

class CallCheck {
 public:
  // Of one call; copies are the same.
  class Pending {
   public:
    struct State;
    explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

    // Whether conclude() would return, or throw, at once.
    bool done() const;
    // Waits until the ranks are known to agree.
    //   throws  ProtocolMismatch naming what each rank made; PeerLost and DeadlineExceeded naming this call
    void conclude() const;
    // "all_reduce(sum) of 1024 f32 [bucket 3] (call 3 on group 'dp')"
    std::string place() const;

   private:
    std::shared_ptr<State> state_;
  };

  // Of calls on the group that `host` is; fingerprints use groups of their own, split from it.
  explicit CallCheck(ProcessGroup& host);
  ~CallCheck();

  // Every rank of a collective, and both of a message, start it in the order in which they make the calls.
  Pending start(const CallInfo& call, std::chrono::milliseconds deadline);

  // The group of the collectives' fingerprints: for what ranks tell one another outside their calls.
  ProcessGroup& side() const { return *calls_; }

 private:
  struct Group;  // who the ranks are

  Pending start_collective(const CallInfo& call, std::chrono::milliseconds deadline);
  Pending start_message(const CallInfo& call, std::chrono::milliseconds deadline);

  ProcessGroup& host_;
  const std::shared_ptr<const Group> group_;
  std::unique_ptr<ProcessGroup> calls_;
  // What senders say, and what receivers say: apart, since those to one peer are matched in the order of either.
  std::unique_ptr<ProcessGroup> senders_, receivers_;
  uint64_t number_ = 0;
  std::map<std::pair<int, bool>, uint64_t> messages_;  // so far, by peer and whether this rank sends
};

}  // namespace lockstep::comm
