// Waiting for messages: MPI has no sleep that ends when one comes, so a wait looks, at growing intervals.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/comm/host/wait.h"

namespace lockstep::comm::mpi {

// How a thread waits. Where ranks share processors none keeps one from the rank that it waits for.
struct Pace {
  double spins_for_s = 0;   // without letting others run
  double yields_for_s = 0;  // after that
  int longest_sleep_us = 500;

  static Pace of_caller(int ranks_on_host) {
    // Not those this process may use: mpirun binds each rank to one.
    const bool alone = ranks_on_host <= sysconf(_SC_NPROCESSORS_ONLN);
    return {.spins_for_s = alone ? 50e-6 : 0, .yields_for_s = 2e-3};
  }
  // Of a thread beside one that computes.
  static Pace of_thread() { return {.yields_for_s = 50e-6}; }
};

// Whether it is there after all: what a rank sent before it ended counts, and may take MPI a moment to bring.
template <class Ready>
bool comes_late(Ready ready) {
  constexpr double kMoment_s = 10e-3;
  const double until_s = now_s() + kMoment_s;
  while (now_s() < until_s) {
    if (ready()) return true;
    sched_yield();
  }
  return false;
}

// Returns when ready() is true, when disturbed() says that it may never be, or at the deadline. Ready wins.
template <class Ready, class Disturbed>
host::WaitEnd poll_until(const Pace& pace, host::Deadline& deadline, Ready ready, Disturbed disturbed) {
  constexpr int kFirstSleep_us = 10;
  constexpr int kLooks = 16;
  for (int i = 0; i < kLooks; ++i) {
    if (ready()) return host::WaitEnd::ready;
  }
  deadline.start();
  const double start_s = now_s();
  for (int sleep_us = kFirstSleep_us; true;) {
    if (ready()) return host::WaitEnd::ready;
    const double waited_s = now_s() - start_s;
    if (waited_s < pace.spins_for_s) continue;
    if (waited_s < pace.spins_for_s + pace.yields_for_s) {
      sched_yield();
      continue;
    }
    if (disturbed()) return comes_late(ready) ? host::WaitEnd::ready : host::WaitEnd::disturbed;
    if (deadline.left_s() <= 0) return ready() ? host::WaitEnd::ready : host::WaitEnd::deadline;
    usleep(static_cast<useconds_t>(sleep_us));
    sleep_us = std::min(2 * sleep_us, pace.longest_sleep_us);
  }
}

}  // namespace lockstep::comm::mpi
