// The one clock: monotonic seconds, the same in all processes of one host.
#pragma once

#include <time.h>

#include <chrono>

namespace lockstep {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds for which the calling thread has been running on a core: less passes than of now_s() while it waits, or while
// others have the core.
inline double thread_cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace lockstep
