// How a rank sleeps until another rank has done something, in memory that several processes may share.
//
// Whoever changes something that others may await rings the doorbell beside it afterwards; that is cheap while nobody
// sleeps. Why no wake-up is lost: both sides modify `sleepers`, so one comes second and sees what the first did before.
//
//   sleeper   sleepers += 1;  looks at what it awaits;  sleeps while `rings` is what it was before looking
//   changer   changes it;     sleepers: 0 becomes 0;    if it was not 0: rings += 1, wakes
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::comm::host {

struct Doorbell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  void ring() {
    uint32_t none = 0;  // clang makes a fence and a load of an addition of 0, which takes longer
    if (!sleepers.compare_exchange_strong(none, 0, std::memory_order_acq_rel)) [[unlikely]]
      ring_loudly();
  }

 private:
  void ring_loudly();
};

// Sleeps until `bell` rings after `seen` was read from it, at most `longest_s` seconds; may return early.
void sleep_until_rung(Doorbell& bell, uint32_t seen, double longest_s);

// Tells the processor that this is a spinning loop.
void relax_processor();

// Starts bringing a cache line here for writing, so that a write soon after does not wait for whoever read it last.
inline void claim_cache_line(const void* address) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(address)));  // the built-in only asks for reading
#else
  __builtin_prefetch(address, 1);
#endif
}

// How long to look for a change before sleeping. Looking is worth it only while every rank has a core of its own;
// otherwise the core is given to the rank that is awaited.
struct Patience {
  double spin_s = 0;
  int yields = 0;

  // For the thread that made a blocking call, and for a communication thread, which competes with computation.
  static Patience of_caller(int ranks_on_host);
  static Patience of_communication_thread(int ranks_on_host);
  // For who awaits a rank that runs on the same core.
  static Patience of_shared_core() { return {.spin_s = 0, .yields = 20}; }
};

// Cores that this process may run on.
int available_cores();

}  // namespace lockstep::comm::host
