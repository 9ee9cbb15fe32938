// The same as all_reduce_lockstep.cc with MPI_Allreduce.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "repeats.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 1; i < argc; ++i) {
    const int64_t bytes = std::atoll(argv[i]);
    std::vector<float> values(static_cast<size_t>(bytes / 4));
    const auto run = [&] {
      MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
    const double seconds = benchmarks::seconds_per_call(bytes, run, [] { MPI_Barrier(MPI_COMM_WORLD); });
    if (rank == 0) std::printf("%lld %.9f\n", static_cast<long long>(bytes), seconds);
  }
  MPI_Finalize();
  return 0;
}
