// SIGTERM, by which mpirun ends the other ranks when one has died: a call under way still ends with its error, and a
// rank that is in none says why it ends.
#pragma once

#include "lockstep/comm/mpi/peers.h"

namespace lockstep::comm::mpi {

class Termination {
 public:
  // Takes the signal for as long as it lives, unless the program has its own way with it. One at a time.
  Termination(const Peers& peers, int rank, int world_size);
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  // Whether the signal has come during a call.
  static bool asked_for();

  // While one lives the signal is left to the call.
  class DuringCall {
   public:
    DuringCall();
    ~DuringCall();
    DuringCall(const DuringCall&) = delete;
    DuringCall& operator=(const DuringCall&) = delete;
  };

 private:
  bool taken_ = false;
};

}  // namespace lockstep::comm::mpi
