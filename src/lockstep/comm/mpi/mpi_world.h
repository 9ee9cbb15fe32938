// Ranks as processes, on one host or several, that OpenMPI connects. mpirun starts them; so does srun where it speaks
// PMIx.
//
// Every call begins with an announcement that each member sends to each other member: it is the fingerprint, and small
// data travels in it. Larger data follows between those that have agreed, so a disagreement never moves a byte. All of
// it is MPI's point-to-point messages, which a wait can give up at its deadline; MPI's own collectives and the making
// of a communicator cannot. Reductions exchange slices and add each with comm::reduce, so the sums are the same bits as
// those of the other backends: bf16 and f16 are rounded once, and the order of additions is the same tree.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Why this build has no MPI; empty: it has.
std::string_view mpi_missing_because();

struct MpiWorldOptions {
  int expected_ranks = 0;                       // that the launcher started; 0: not known
  std::chrono::milliseconds deadline{600'000};  // the groups' default
};

// Initialises MPI, unless the program has, and joins the world of all its ranks. A member that ends well waits until
// all others do; one that ends by an exception does not, and leaves without MPI_Finalize.
//   throws   Unsupported when MPI gives less than MPI_THREAD_MULTIPLE, or does not connect the ranks that were started
std::unique_ptr<ProcessGroup> join_mpi_world(const MpiWorldOptions& options);

}  // namespace lockstep::comm
