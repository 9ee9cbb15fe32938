// The same as collectives_lockstep.cc with MPI's collectives.
#include <mpi.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "operations.h"
#include "repeats.h"

namespace {

using lockstep::comm::Operation;

struct Vectors {
  std::vector<float> in, out;
  int count;
};

std::function<void()> call_of(Operation operation, Vectors& v) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float *const in = v.in.data(), *const out = v.out.data();
  const int n = v.count, right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  switch (operation) {
    case Operation::all_reduce:
      return [=] { MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    case Operation::all_gather:
      return [=] { MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); };
    case Operation::reduce_scatter:
      return [=] { MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    case Operation::broadcast:
      return [=] { MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD); };
    case Operation::all_to_all:
      return [=] { MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD); };
    default:
      return [=] {
        MPI_Sendrecv(in, n, MPI_FLOAT, right, 0, out, n, MPI_FLOAT, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      };
  }
}

int64_t of_rank_0(int64_t number) {
  MPI_Bcast(&number, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 2; i < argc; ++i) {
    const lockstep::measure::CallShape shape = benchmarks::shape_of(argv[1], argv[i], ranks);
    const auto whole = static_cast<size_t>(lockstep::measure::bytes_of(shape, ranks) / 4);
    Vectors vectors{std::vector<float>(whole), std::vector<float>(whole), static_cast<int>(shape.count)};
    const double seconds =
        benchmarks::seconds_per_call(call_of(shape.operation, vectors), [] { MPI_Barrier(MPI_COMM_WORLD); }, of_rank_0);
    if (rank == 0) std::printf("%s %.9f\n", argv[i], seconds);
  }
  MPI_Finalize();
  return 0;
}
