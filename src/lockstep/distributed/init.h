// The start of every program that trains on several ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

using comm::ProcessGroup;

struct InitOptions {
  std::chrono::milliseconds deadline{600'000};  // longest wait for another rank
  int intraop_threads = 1;                      // libtorch's threads per rank; bit-equality is claimed for one
  bool show_all_ranks = false;                  // information lines of every rank, not of rank 0 alone
  std::string log_file;                         // this rank's lines, also here; empty: nowhere
};

// The group of all ranks, as `lockstep launch` (or mpirun, srun, torchrun) started them; one rank when nothing did.
// Owned by the caller and passed to whatever communicates: there is no global group.
// From here on an exception of ours that nobody catches ends the process with one line and its exit code.
//   throws   Unsupported when a launcher's variables ask for a backend that this build lacks
std::unique_ptr<ProcessGroup> init(const InitOptions& options = {});

// What init() does for the calling thread alone; for ranks that are threads.
void prepare_rank_thread(int intraop_threads);

}  // namespace lockstep
