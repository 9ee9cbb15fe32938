#include "lockstep/launch/world.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/comm/mpi/mpi_world.h"
#include "lockstep/comm/nccl/nccl_world.h"
#include "lockstep/launch/variables.h"

namespace lockstep::launch {
namespace {

std::optional<std::string> read_text(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> read_number(const char* variable) {
  const std::optional<std::string> value = read_text(variable);
  if (!value) return std::nullopt;
  int number = 0;
  const char* const end = value->data() + value->size();
  const auto [stopped_at, error] = std::from_chars(value->data(), end, number);
  if (error != std::errc() || stopped_at != end || number < 0) {
    throw InvalidArgument(Problem{variable, *value, "must be a whole number, 0 or more", ""}.message());
  }
  return number;
}

// Where other launchers put what they tell their processes. Slurm's are those of a step: a batch script sees the job's,
// but was started alone.
struct Convention {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* mpi;                 // set where OpenMPI can find the other processes
  const char* ranks_on_host;       // how many of the ranks are on this host; null: not told
  std::array<const char*, 4> job;  // together they are this job's alone, on this host
};
constexpr Convention kConventions[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK", nullptr, {}},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMIX_RANK", nullptr, {}},
    {"srun",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     "PMIX_RANK",
     "SLURM_STEP_TASKS_PER_NODE",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     nullptr,
     "LOCAL_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
};

// Of ranks that are all on this host.
std::string meeting_of(const Convention& convention, int world_size) {
  if (convention.ranks_on_host == nullptr || read_text(convention.ranks_on_host) != std::to_string(world_size))
    return "";
  std::string name;
  for (const char* const variable : convention.job) {
    if (variable != nullptr) name += text(variable, "=", read_text(variable).value_or(""), " ");
  }
  return name;
}

Place checked(const Place& place, const char* rank_variable, const char* world_size_variable) {
  if (place.world_size < 1 || place.rank >= place.world_size) {
    throw InvalidArgument(text(rank_variable, " = ", place.rank, " with ", world_size_variable, " = ", place.world_size,
                               ": a rank is 0 to world size - 1; start the program with a launcher, or unset both"));
  }
  return place;
}

}  // namespace

Place place_from_environment() {
  if (const std::optional<int> descriptor = read_number(kDescriptorVariable)) {
    const std::optional<int> rank = read_number(kRankVariable);
    const std::optional<int> world_size = read_number(kWorldSizeVariable);
    if (!rank || !world_size) {
      throw InvalidArgument(text(kDescriptorVariable, " is set but not ", kRankVariable, " and ", kWorldSizeVariable,
                                 ": the launcher sets all three; let programs between pass them on"));
    }
    return checked({"lockstep", *rank, *world_size, *rank, *descriptor}, kRankVariable, kWorldSizeVariable);
  }
  for (const Convention& convention : kConventions) {
    const std::optional<int> rank = read_number(convention.rank);
    const std::optional<int> world_size = read_number(convention.world_size);
    if (!rank || !world_size) continue;
    const int local_rank = read_number(convention.local_rank).value_or(0);
    const bool has_mpi = convention.mpi != nullptr && read_number(convention.mpi).has_value();
    return checked(
        {convention.launcher, *rank, *world_size, local_rank, -1, has_mpi, meeting_of(convention, *world_size)},
        convention.rank, convention.world_size);
  }
  return {};
}

std::string_view fitting_backend(const Place& place) {
  if (place.descriptor >= 0) return "shared_memory";
  if (place.world_size == 1) return "in_process";
  const std::string_view no_mpi = comm::mpi_missing_because();
  if (place.has_mpi && no_mpi.empty()) return "mpi";
  if (!place.meeting.empty()) return "shared_memory";
  throw Unsupported(text(place.launcher, " started ", place.world_size, " processes, but ",
                         place.has_mpi ? text("this build has no MPI to connect them (", no_mpi, ")")
                                       : "it does not tell MPI, the backend between processes that lockstep did not "
                                         "start, where they are",
                         "; start them with lockstep launch --ranks ", place.world_size, " -- PROGRAM, or mpirun -n ",
                         place.world_size, " PROGRAM"));
}

std::unique_ptr<comm::ProcessGroup> world_from_environment(const WorldOptions& options) {
  const Place place = place_from_environment();
  const std::string_view chosen = !options.backend.empty()              ? std::string_view(options.backend)
                                  : place.local_rank < comm::num_gpus() ? "nccl"
                                                                        : fitting_backend(place);
  std::unique_ptr<comm::ProcessGroup> world = find_backend(chosen).join(place, options);
  if (const char* const folder = std::getenv(kFlightVariable)) world->set_flight_folder(folder);
  return world;
}

}  // namespace lockstep::launch
