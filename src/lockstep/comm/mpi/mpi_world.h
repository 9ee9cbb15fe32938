// Ranks as processes, on one host or several, that OpenMPI connects. mpirun starts them; so does srun where it speaks
// PMIx.
//
// Every call begins with an announcement that each member sends to each other member: it is the fingerprint, and small
// data travels in it. Larger data follows between those that have agreed, so a disagreement never moves a byte. It
// moves as a step program says, in MPI's point-to-point messages, which a wait can give up at its deadline. Programs
// that round once (collective::Rounding) give the same bits as the other backends.
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
  // Where there are several hosts: groups of ranks of one host, split from the world, communicate over shared memory,
  // and so do the parts of one job that stay inside a host. Up to 64 ranks in the world; more of them use MPI
  // throughout.
  bool shared_memory_inside = false;
};

// Initialises MPI, unless the program has, and joins the world of all its ranks. A member that ends well waits until
// all others do; one that ends by an exception does not, and leaves without MPI_Finalize.
//   throws   Unsupported when MPI gives less than MPI_THREAD_MULTIPLE, or does not connect the ranks that were started
std::unique_ptr<ProcessGroup> join_mpi_world(const MpiWorldOptions& options);

}  // namespace lockstep::comm
