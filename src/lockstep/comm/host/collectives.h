// One rank's part in the collectives of one group.
//
// Every call begins alike: announce it in the own slot, wait for everyone's, compare. After that
//   small                       the data came with the announcements: done
//   large, memory reachable     read the others' memory, write one's share into theirs, then wait until all have (sync)
//   large, other memory         the same over staging blocks, copied in and out
// Which of the three is decided by what all ranks have announced, so all decide alike. Nothing is allocated.
#pragma once

#include <functional>

#include "lockstep/comm/host/health.h"

namespace lockstep::comm::host {

class Collectives {
 public:
  Collectives(const GroupView& view, const Health& health) : view_(view), health_(health) {}

  // `call` is valid (see validate). One thread at a time.
  void execute(const Call& call, double deadline_s, const Patience& patience);

 private:
  struct Execution;  // the state of one call

  GroupView view_;
  const Health& health_;
  uint64_t sequence_ = 0;
  uint64_t phase_ = 0;
};

}  // namespace lockstep::comm::host
