// Makes the world group of this process, from what a launcher left in the environment.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::launch {

struct WorldOptions {
  std::optional<std::chrono::milliseconds> deadline;  // the groups' default; absent: the launcher's
  std::string backend;  // a name in backends(); empty: what fits the launcher, and nccl over it where there are GPUs
};

// This process's place among the processes that were started together.
struct Place {
  std::string launcher = "none";  // "lockstep", "mpirun", "srun", "torchrun"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;    // among the ranks of this host: picks the device
  int descriptor = -1;   // of the shared memory that our launcher made; -1: none
  bool has_mpi = false;  // the launcher tells OpenMPI where the others are
  std::string meeting;   // by which ranks of another launcher, all on this host, find one another; empty: they cannot
};

// Reads lockstep's own variables first, then mpirun's, srun's and torchrun's.
//   throws  InvalidArgument for variables that contradict one another
Place place_from_environment();

// Which backend connects the host memory of processes that were started so.
//   throws  Unsupported for several ranks of a launcher that no backend of this build serves
std::string_view fitting_backend(const Place& place);

// Joins the world: shared memory under our launcher, MPI under mpirun (or an srun that speaks PMIx), one rank without a
// launcher. Call it once.
//   throws  Unsupported for several ranks of a launcher that no backend of this build serves
std::unique_ptr<comm::ProcessGroup> world_from_environment(const WorldOptions& options = {});

// A way to communicate. A backend that is not part of this build is listed with the reason, and refuses with it.
struct Backend {
  std::string_view name;
  std::string_view between;          // for people: what it connects
  std::string_view missing_because;  // empty: it is there
  std::unique_ptr<comm::ProcessGroup> (*join)(const Place& place, const WorldOptions& options);
};
std::span<const Backend> backends();

// throws  InvalidArgument for an unknown name, Unsupported for a backend that is not part of this build
const Backend& find_backend(std::string_view name);

}  // namespace lockstep::launch
