// faults_mpi CASE: three ranks of OpenMPI, without lockstep, of which rank 1 does something else. Every rank says what
// it has in the end and what its own calls would have given had the others made the same.
#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

float values[100'000];
int rank = 0;

void sum(int count = 4, MPI_Comm comm = MPI_COMM_WORLD) {
  MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, comm);
}

void broadcast(int root) {
  MPI_Bcast(values, 4, MPI_FLOAT, root, MPI_COMM_WORLD);
}

// Blocking calls of two communicators, rank 1 in the other order.
void swapped() {
  MPI_Comm a = MPI_COMM_NULL, b = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &a);
  MPI_Comm_dup(MPI_COMM_WORLD, &b);
  sum(4, rank == 1 ? b : a);
  sum(4, rank == 1 ? a : b);
}

// Calls, and the value that every element then should have; 0: the rank does not say.
struct Calls {
  std::function<void()> make;
  float right = 0;
};
struct Case {
  Calls of_rank_1, of_others;
};

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> all{
      {"killed", {{[] { raise(SIGKILL); }}, {[] { sum(); }, 6}}},
      {"stopped", {{[] { raise(SIGSTOP); }}, {[] { sum(); }, 6}}},
      {"returns early", {{[] {}}, {[] { sum(); }, 6}}},
      {"skips a call",
       {{[] { broadcast(0); }, 6},
        {[] {
           sum();
           broadcast(0);
         },
         6}}},
      {"other count", {{[] { sum(6); }, 6}, {[] { sum(4); }, 6}}},
      {"other count, large", {{[] { sum(60'000); }, 6}, {[] { sum(90'000); }, 6}}},
      {"other type",
       {{[] { MPI_Allreduce(MPI_IN_PLACE, values, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD); }, 6}, {[] { sum(); }, 6}}},
      {"other root", {{[] { broadcast(1); }, 2}, {[] { broadcast(0); }, 1}}},
      {"other reduction",
       {{[] { MPI_Allreduce(MPI_IN_PLACE, values, 4, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD); }, 3}, {[] { sum(); }, 6}}},
      {"other operation", {{[] { broadcast(1); }, 2}, {[] { sum(); }, 6}}},
      {"groups swapped", {{swapped, 18}, {swapped, 18}}},
  };
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || !cases().contains(argv[1])) return 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "process %d\n", getpid());
  for (float& value : values) value = static_cast<float>(rank + 1);
  MPI_Barrier(MPI_COMM_WORLD);
  const Case& faulty = cases().at(argv[1]);
  const Calls& own = rank == 1 ? faulty.of_rank_1 : faulty.of_others;
  own.make();
  if (own.right != 0) std::fprintf(stderr, "rank %d has %g, its calls mean %g\n", rank, values[0], own.right);
  MPI_Finalize();
  return 0;
}
