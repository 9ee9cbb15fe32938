// The one clock: monotonic seconds, the same in all processes of one host.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

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

// A time stamp at a third of the cost: counts up at a steady rate that now_s() tells, from any start.
inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

}  // namespace lockstep
