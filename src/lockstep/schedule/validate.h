// Is a table a right one? Every micro-batch goes once through each kind of work on every stage, each action stands
// after what it needs, every send has its receive in the same order, and no rank waits for ever.
#pragma once

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

// Between each two ranks there is a channel in each direction, in order, that holds nothing: a message moves when its
// send and its receive have both been reached.
//   posted     a rank goes on at once and waits where the message is used
//   blocking   a rank stands at a send or receive until the other rank has come to the other end
enum class Sends { posted, blocking };

struct Rules {
  Sends sends = Sends::posted;
  bool whole_step = false;  // a training step: every stage's reduction and every rank's step have to be there
  std::vector<double> in_flight_bound;  // by rank, in micro-batches of the whole rank; empty: none
};

// Rules that the table breaks, at most 100; those that need others to hold are looked at when the others do. A
// problem's field is the rank, its value the action, and its rule names the other action concerned. Communication,
// sharding, recomputation and the step need not be there; communication that is there in part must be there whole, and
// a stage that is unsharded once must be whole whenever it computes.
std::vector<Problem> validate(const Table& table, const Rules& rules = {});

// Where ranks stand that cannot go on, once all that can have; empty: all come to the end.
struct Stuck {
  int rank = 0;
  Action action;
  Action waits_for;
};
std::vector<Stuck> find_stuck(const Table& table, Sends sends = Sends::posted);

}  // namespace lockstep::schedule
