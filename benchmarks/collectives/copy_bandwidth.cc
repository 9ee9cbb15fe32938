// Bytes per second that this many ranks move at once with streaming copies: the machine's share in a long all_reduce.
#include <cstdio>

#include "lockstep/launch/world.h"
#include "lockstep/measure/timing.h"

int main() {
  const auto world = lockstep::launch::world_from_environment();
  const double bytes_per_s = lockstep::measure::copy_bandwidth(*world);
  if (world->rank() == 0) std::printf("%.0f\n", bytes_per_s);
  return 0;
}
