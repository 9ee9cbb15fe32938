// One rank's part in the collectives of one group.
//
// A call begins thus: announce it in the own slot, wait for everyone's announcement, compare. After that
//   small                       the data came with the announcements: done
//   large, memory reachable     read the others' memory, write one's share into theirs, then wait until all have (sync)
//   large, other memory         the same over staging blocks, copied in and out
// Which of the three is decided by what all ranks have announced, so all decide alike. Nothing is allocated. A call
// that is to be served by a step program runs that instead, its messages between the ranks over channels of their own.
//
// A short broadcast that is the same as the call before it meets nobody: its root runs ahead (run_ahead.cc).
#pragma once

#include <functional>

#include "lockstep/comm/host/messages.h"
#include "lockstep/comm/programs.h"
#include "lockstep/comm/run_program.h"

namespace lockstep::comm::host {

class Collectives {
 public:
  Collectives(const GroupView& view, Health& health, Programs& programs, const FlightLog& flight,
              const Messages::Options& steps)
      : view_(view), health_(health), programs_(programs), flight_(flight), steps_(view, health, steps) {}

  // `call` is valid (see validate). One thread at a time.
  //   algorithm  Programs::choose of the call
  void execute(const Call& call, uint8_t algorithm, double deadline_s, const Patience& patience);
  const collective::Traffic& traffic() const { return traffic_; }

 private:
  struct Execution;  // the state of one call
  // Short broadcasts that repeat the last call that all have met for.
  struct Repeats {
    uint64_t met = 0;         // the number of that call; 0: none
    uint64_t room_until = 0;  // on the root: the last call that there are free lines for
    uint64_t tell_at = 0;     // on the others: the call after which to say that it was taken
    uint64_t calls = 0;       // that there are lines for at once
    int lines = 0;            // of each call; 0: there was none yet
    int all_lines = 0;        // of that many calls
    int next_line = 0;
  };

  GroupView view_;
  const Health& health_;
  Programs& programs_;
  const FlightLog& flight_;
  Messages steps_;
  Workspace workspace_;
  collective::Traffic traffic_;
  uint64_t sequence_ = 0;
  int turn_ = 0;  // which slot was used last
  Repeats repeats_;
  uint64_t phase_ = 0;
};

}  // namespace lockstep::comm::host
