// Bytes per second that this many ranks move at once with streaming copies of memory beyond the caches (reads plus
// writes): the machine's share in a large all_reduce.
#include <cstdio>

#include "lockstep/base/clock.h"
#include "lockstep/comm/reduce.h"
#include "lockstep/launch/world.h"

int main() {
  using namespace lockstep;
  constexpr int64_t kBytes = 64 << 20;
  constexpr int kRepeats = 10;
  const auto world = launch::world_from_environment();
  const comm::Registered from = world->allocate(kBytes);
  const comm::Registered to = world->allocate(kBytes);
  comm::copy(to.data(), from.data(), kBytes, true);
  world->barrier();
  const double start_s = now_s();
  for (int i = 0; i < kRepeats; ++i) comm::copy(to.data(), from.data(), kBytes, true);
  world->barrier();
  const double seconds = now_s() - start_s;
  if (world->rank() == 0) std::printf("%.0f\n", 2.0 * kBytes * kRepeats * world->size() / seconds);
  return 0;
}
