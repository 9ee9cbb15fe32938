// Built instead of the rest of this folder where there is no MPI.
#include "lockstep/comm/mpi/mpi_world.h"

namespace lockstep::comm {

std::string_view mpi_missing_because() {
  return "no MPI was found when it was built; on Debian: apt-get install libopenmpi-dev openmpi-bin";
}

std::unique_ptr<ProcessGroup> join_mpi_world(const MpiWorldOptions&) {
  throw Unsupported(text("backend mpi: ", mpi_missing_because()));
}

}  // namespace lockstep::comm
