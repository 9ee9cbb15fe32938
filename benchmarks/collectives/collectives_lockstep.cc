// Times all_reduce of f32 between two ranks: ours, warm, on registered memory, with its checks on. Prints "BYTES
// SECONDS" per size; all_reduce.py runs it in turns with all_reduce_mpi.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/launch/world.h"
#include "repeats.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  const auto world = launch::world_from_environment();
  for (int i = 1; i < argc; ++i) {
    const int64_t bytes = std::atoll(argv[i]);
    const comm::Registered memory = world->allocate(bytes);
    const comm::Buffer buffer{.data = memory.data(), .count = bytes / 4};
    const auto run = [&] { world->all_reduce(buffer, comm::Reduction::sum); };
    const double seconds = benchmarks::seconds_per_call(bytes, run, [&] { world->barrier(); });
    if (world->rank() == 0) std::printf("%lld %.9f\n", static_cast<long long>(bytes), seconds);
  }
  return 0;
}
