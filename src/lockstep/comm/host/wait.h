// Waiting for another rank: look for a moment, then sleep; with a deadline, and with a way out when the awaited cannot
// come.
#pragma once

#include <sched.h>

#include "lockstep/base/clock.h"
#include "lockstep/comm/host/doorbell.h"

namespace lockstep::comm::host {

// Of one call, over all of its waits. Counts from the first wait that is not over at once: reading the clock costs as
// much as a small collective.
struct Deadline {
  double limit_s = 0;
  double started_s = 0;  // 0: not yet

  void start() {
    if (started_s == 0) started_s = now_s();
  }
  double elapsed_s() const { return started_s == 0 ? 0 : now_s() - started_s; }
  double left_s() const { return limit_s - elapsed_s(); }
};

enum class WaitEnd { ready, disturbed, deadline };

// Whether ready() becomes true within a moment too short to read the clock for.
template <class Ready>
bool look_briefly(Ready ready) {
  constexpr int kLooks = 60;
  for (int i = 0; i < kLooks; ++i) {
    if (ready()) return true;
    relax_processor();
  }
  return false;
}

// Returns when ready() is true, when disturbed() says that it may never be, or at the deadline. Ready wins: what is
// there counts, also when whoever brought it has died since.
template <class Ready, class Disturbed>
WaitEnd wait_until(Doorbell& bell, const Patience& patience, Deadline& deadline, Ready ready, Disturbed disturbed) {
  deadline.start();
  if (patience.spin_s > 0) {
    const double until_s = now_s() + patience.spin_s;
    constexpr int kLooksPerTime = 100;
    do {
      for (int i = 0; i < kLooksPerTime; ++i) {
        if (ready()) return WaitEnd::ready;
        relax_processor();
      }
    } while (now_s() < until_s);
  }
  for (int i = 0; i < patience.yields; ++i) {
    sched_yield();
    if (ready()) return WaitEnd::ready;
  }
  while (true) {
    const uint32_t seen = bell.rings.load();
    bell.sleepers.fetch_add(1);
    const bool is_ready = ready();
    const bool is_disturbed = !is_ready && disturbed();
    const double left_s = deadline.left_s();
    if (!is_ready && !is_disturbed && left_s > 0) sleep_until_rung(bell, seen, left_s);
    bell.sleepers.fetch_sub(1);
    if (is_ready || ready()) return WaitEnd::ready;
    if (is_disturbed) return WaitEnd::disturbed;
    if (left_s <= 0) return WaitEnd::deadline;
  }
}

}  // namespace lockstep::comm::host
