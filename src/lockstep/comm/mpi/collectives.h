// One rank's part in the collectives of one group.
//
// Every call begins alike: each member announces it to each other member, and compares. After that
//   announced   the data is small and came with the announcements: done
//   native      MPI's own collective
//   else        the step program, its messages over MPI's point-to-point
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/mpi/native.h"
#include "lockstep/comm/mpi/transfer.h"
#include "lockstep/comm/programs.h"
#include "lockstep/comm/run_program.h"

namespace lockstep::comm::mpi {

class Collectives {
 public:
  Collectives(const GroupView& group, Board& board, Programs& programs, const FlightLog& flight);

  // `call` is valid (see validate). One thread at a time.
  //   algorithm  Programs::choose of the call
  void execute(const Call& call, uint8_t algorithm, double deadline_s, const Pace& pace);
  uint64_t calls() const { return number_; }  // so far
  const collective::Traffic& traffic() const { return traffic_; }

 private:
  struct Task;  // the state of one call

  char* sent_announcement(int member) const { return announcements_->data() + member * announcement_bytes_; }
  char* received_announcement(int member) const {
    return announcements_->data() + (group_.identity.size() + member) * announcement_bytes_;
  }

  const GroupView group_;
  Board& board_;
  Programs& programs_;
  const FlightLog& flight_;
  NativeCollectives native_;
  const int64_t announcement_bytes_;
  Workspace::Memory announcements_;
  Workspace workspace_;
  collective::Traffic traffic_;
  uint64_t number_ = 0;
};

}  // namespace lockstep::comm::mpi
