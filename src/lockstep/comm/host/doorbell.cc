#include "lockstep/comm/host/doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <ctime>
#include <thread>

namespace lockstep::comm::host {
namespace {

uint32_t* futex_word(std::atomic<uint32_t>& word) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  return reinterpret_cast<uint32_t*>(&word);
}

}  // namespace

void Doorbell::ring_loudly() {
  rings.fetch_add(1);
  syscall(SYS_futex, futex_word(rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep_until_rung(Doorbell& bell, uint32_t seen, double longest_s) {
  constexpr double kLongest_s = 3600;  // far from the limits of timespec; the caller looks again and sleeps on
  const double seconds = std::clamp(longest_s, 0.0, kLongest_s);
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  syscall(SYS_futex, futex_word(bell.rings), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void relax_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Patience Patience::of_caller(int ranks_on_host) {
  if (ranks_on_host <= available_cores()) return {.spin_s = 100e-6, .yields = 0};
  return of_shared_core();
}

Patience Patience::of_communication_thread(int ranks_on_host) {
  if (ranks_on_host <= available_cores()) return {.spin_s = 5e-6, .yields = 0};
  return {.spin_s = 0, .yields = 1};
}

}  // namespace lockstep::comm::host
