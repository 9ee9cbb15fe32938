// Sends and receives of one rank in one group. Each direction to each peer is a queue of its own (see Lane), in whose
// order they are matched: an announcement, which holds small data, then the data.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/mpi/transfer.h"

namespace lockstep::comm::mpi {

class Messages {
 public:
  Messages(const GroupView& group, Board& board, const FlightLog& flight)
      : group_(group), board_(board), flight_(flight) {}

  // The `number`th to or from that peer. One at a time per peer and direction.
  void execute(const Call& call, uint64_t number, double deadline_s, const Pace& pace);

 private:
  void send(const Call& call, const Execution& execution, char* announcement);
  void receive(const Call& call, const Execution& execution, char* announcement);
  void check(const Execution& execution, int peer, const char* announcement) const;

  const GroupView group_;
  Board& board_;
  const FlightLog& flight_;
};

}  // namespace lockstep::comm::mpi
