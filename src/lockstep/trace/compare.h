// A recorded run laid over its prediction: whether ranks did what was predicted, how long each kind of action took, how
// much of the time nobody computed, and for whom ranks waited.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/trace/event.h"

namespace lockstep::trace {

// What the ranks did in a step, one list per rank: the events of the compute track, in order, up to and with
// "optimizer_step". Messages and reductions, which ranks wait for, and events within others are left out.
struct StepEvents {
  std::vector<std::vector<Event>> by_rank;

  double begin_s() const;       // of the first
  double makespan_s() const;    // to the end of the last
  double busy_s() const;        // sum of all durations
  double bubble_share() const;  // 1 - busy / (ranks * makespan)
};

// The steps that the events have in full: of each rank equally many, the last ones. Empty when a rank has none.
std::vector<StepEvents> steps_of(std::span<const Event> events);

// A number as predicted and as measured: of the median step where there are several. Durations in seconds: "forward",
// "backward", ..., the mean of a step's actions of the kind; "step", its makespan; "bubble", a share.
struct Term {
  std::string name;
  double predicted = 0, measured = 0;
  double error() const { return predicted / measured - 1; }
};

// A time in which a rank stood still before an action, in the step that took the median time.
struct Wait {
  int rank = 0;
  double seconds = 0;
  Event before;
  int waited_for = -1;  // the rank that computed last of what the action needs; -1: none that is in the trace
};

struct TraceComparison {
  std::vector<Term> terms;
  std::vector<Wait> waits;  // longest first
  // Empty: in every step each rank did the predicted actions, in the predicted order. Else where it first did not.
  std::string difference;
  StepEvents predicted, measured;  // of one step each; the measured one took the median time
};

// `predicted`: one step. The first of several recorded ones does not count: a recorder forgets in the middle of it.
//   throws InvalidArgument when one of the two has no whole step, or other ranks.
TraceComparison compare(std::span<const Event> predicted, std::span<const Event> recorded);

}  // namespace lockstep::trace
