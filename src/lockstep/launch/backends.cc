// The one table of backends.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/comm/mpi/mpi_world.h"
#include "lockstep/comm/nccl/nccl_world.h"
#include "lockstep/comm/shared_memory/shared_memory.h"
#include "lockstep/launch/world.h"

namespace lockstep::launch {
namespace {

std::unique_ptr<comm::ProcessGroup> with_deadline(std::unique_ptr<comm::ProcessGroup> group,
                                                  const WorldOptions& options) {
  if (options.deadline) group->set_default_deadline(*options.deadline);
  return group;
}

std::unique_ptr<comm::ProcessGroup> join_in_process(const Place& place, const WorldOptions& options) {
  if (place.world_size > 1) {
    throw Unsupported(text("backend in_process connects threads, but ", place.launcher, " started ", place.world_size,
                           " processes; use backend shared_memory with lockstep launch"));
  }
  return with_deadline(comm::single_rank(), options);
}

std::unique_ptr<comm::ProcessGroup> join_shared_memory(const Place& place, const WorldOptions& options) {
  if (!place.meeting.empty()) {
    comm::Meeting meeting{.name = place.meeting, .rank = place.rank, .ranks = place.world_size};
    if (options.deadline) meeting.deadline = *options.deadline;
    return comm::meet_on_host(meeting).group;
  }
  if (place.descriptor < 0) {
    throw Unsupported(text("backend shared_memory connects processes that lockstep started, but these were started by ",
                           place.launcher, "; use lockstep launch --ranks N -- PROGRAM"));
  }
  comm::JoinedWorld world = comm::join_shared_memory_world(place.descriptor, place.rank);
  // The launcher set this for its child; a program between the two, a shell say, would be the only one to die with it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (kill(world.launcher, 0) != 0 && errno == ESRCH) {
    throw PeerLost(
        text("rank ", place.rank, ": the launcher (process ", world.launcher, ") has ended; start the job again"));
  }
  return with_deadline(std::move(world.group), options);
}

std::unique_ptr<comm::ProcessGroup> join_mpi(const Place& place, const WorldOptions& options) {
  if (!place.has_mpi) {
    throw Unsupported(text(
        "backend mpi connects processes that mpirun started, but ",
        place.launcher == "none" ? "this one was started without it" : text("these were started by ", place.launcher),
        "; use mpirun -n N PROGRAM, or srun --mpi=pmix"));
  }
  // Who names a backend gets that one throughout.
  comm::MpiWorldOptions mpi{.expected_ranks = place.world_size, .shared_memory_inside = options.backend.empty()};
  if (options.deadline) mpi.deadline = *options.deadline;
  return comm::join_mpi_world(mpi);
}

// Beside the backend that connects the ranks' host memory.
std::unique_ptr<comm::ProcessGroup> join_nccl(const Place& place, const WorldOptions& options) {
  const int gpus = comm::num_gpus();
  if (place.local_rank >= gpus) {
    throw Unsupported(text("backend nccl: local rank ", place.local_rank,
                           " has no GPU of its own, the driver of this host gives ", gpus, "; use backend ",
                           fitting_backend(place), " for memory of the host"));
  }
  return comm::with_nccl(find_backend(fitting_backend(place)).join(place, options));
}

}  // namespace

std::span<const Backend> backends() {
  static const Backend kBackends[] = {
      {"in_process", "threads of one process", "", join_in_process},
      {"shared_memory", "processes of one host", "", join_shared_memory},
      {"mpi", "processes, also of several hosts", comm::mpi_missing_because(), join_mpi},
      {"nccl", "GPUs, beside one of the above for host memory", comm::nccl_missing_because(), join_nccl},
  };
  return kBackends;
}

const Backend& find_backend(std::string_view name) {
  std::string present;
  std::vector<std::string> names;
  for (const Backend& backend : backends()) {
    names.emplace_back(backend.name);
    if (backend.missing_because.empty()) present += text(present.empty() ? "" : ", ", backend.name);
  }
  for (const Backend& backend : backends()) {
    if (backend.name != name) continue;
    if (!backend.missing_because.empty()) {
      throw Unsupported(text("backend ", name, " is not part of this build (", backend.missing_because,
                             "); this build has ", present));
    }
    return backend;
  }
  const std::string closest = nearest_name(name, names);
  throw InvalidArgument(Problem{"backend", std::string(name), text("must be one of ", present), closest}.message());
}

}  // namespace lockstep::launch
