// Starts a program as N ranks of MPI.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

struct MpirunOptions {
  int ranks = 1;                     // more than the processors is fine
  std::vector<std::string> command;  // the program and its arguments
};

// Runs OpenMPI's mpirun, found in PATH, until it ends; it dies with this process. As root it is told that this is
// meant.
//   returns  mpirun's exit code: 0 when every rank returned 0, else that of the rank that failed first; 127 if there is
//            no mpirun; 128 + the signal that ended it
//   throws   Unsupported when the host gives no more processes
int mpirun(const MpirunOptions& options);

}  // namespace lockstep::launch
