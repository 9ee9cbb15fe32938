// What a simulation says: how much of the time is bubble, by each definition in use; why it takes as long as it does.
#pragma once

#include <vector>

#include "lockstep/simulate/simulate.h"
#include "lockstep/trace/compare.h"
#include "lockstep/trace/event.h"

namespace lockstep::simulate {

// The definitions differ, and papers mix them. Transfers are not busy time.
struct Bubbles {
  double ideal = 0;     // sum(busy) / K: the makespan if nothing ever waited
  double of_total = 0;  // 1 - sum(busy) / (K * makespan)                             GPipe: (K-1)/(M+K-1)
  double of_ideal = 0;  // makespan / ideal - 1                                       Megatron: (K-1)/M
  double of_span = 0;   // 1 - ideal / (longest of the ranks' times from first begin to last end)   Zero Bubble's rate
  // fill / (ideal + fill), the fill being the time until the last rank begins: (K-1) f / (M (f+b) + (K-1) f) for equal
  // stages. Stated in some courses; it leaves out that ranks wait while backwards drain, so it is below of_total.
  double of_forward_fill = 0;
};
Bubbles bubbles(const Simulation& simulation);

// Spans one after another, each beginning where the one before ends, from 0 to the makespan: none of them can take
// longer without the whole taking longer. Messages that take no time are left out.
std::vector<int> critical_path(const Simulation& simulation);

// A time in which a rank stood still before the action `until` of its list, and for whom it waited: the span that ended
// last of what the action needed, computing or a message that took time; -1 at the end of a list, which waits for
// nobody.
struct Gap {
  int rank = 0;
  double begin = 0, end = 0;
  int until = -1;       // span; -1: the list is at its end
  int waited_for = -1;  // span
  double duration() const { return end - begin; }
};
std::vector<Gap> gaps(const Simulation& simulation);

// The rank that worked or sent while the gap's rank waited: that of `waited_for`; -1 for none.
int rank_waited_for(const Simulation& simulation, const Gap& gap);

// The same events as a recorder's, in seconds from 0: actions on the compute track under the names of their kinds, and
// messages, unsharding and reductions on the communication track.
//   message_bytes   of each message
std::vector<trace::Event> events(const Simulation& simulation, int64_t message_bytes = 0);

// A recorded step in the form of a simulation, from time 0 on, so that both are drawn alike. Without messages; what its
// spans waited for is not known.
Simulation of_recorded(const trace::StepEvents& step);

}  // namespace lockstep::simulate
