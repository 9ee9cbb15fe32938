// collectives_lockstep OPERATION BYTES...: times one operation of f32, warm, on registered memory, with its checks on.
// Prints "BYTES SECONDS" per size; collectives.py runs it in turns with collectives_mpi.
#include <cstdio>

#include "lockstep/launch/world.h"
#include "operations.h"
#include "repeats.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  if (argc < 3) return 2;
  const auto world = launch::world_from_environment();
  const auto agree = [&](int64_t number) {
    world->broadcast({.data = &number, .count = 1, .type = comm::DataType::i64}, 0);
    return number;
  };
  for (int i = 2; i < argc; ++i) {
    const measure::CallShape shape = benchmarks::shape_of(argv[1], argv[i], world->size());
    const bool in_place =
        shape.operation == comm::Operation::all_reduce || shape.operation == comm::Operation::broadcast;
    const measure::CallMemory memory(*world, measure::bytes_of(shape, world->size()));
    measure::KnownCall call(*world, shape, in_place, "", memory);
    call.fill();
    const double seconds = benchmarks::seconds_per_call([&] { call.run(); }, [&] { world->barrier(); }, agree);
    if (world->rank() == 0) std::printf("%s %.9f\n", argv[i], seconds);
  }
  return 0;
}
