// Runs an action table in time: each rank takes its actions in order, each as soon as what it needs is there. The
// result has every action and every message with its beginning, its end, and what it waited for.
//
//   rank 0 |F0F1F2..........B0B0..|      compute   what the rank does, one thing at a time
//          |  0-0-                |      messages  on their way to rank 1
//   rank 1 |    F0F1..B0B0B1B1    |
//
// Times have whatever unit the costs have; seconds when the result becomes trace events.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "lockstep/schedule/table.h"

namespace lockstep::simulate {

// What a message of `transfer` time does between two ranks; on the same rank nothing is sent.
//   async   it arrives `transfer` after its send, any number at once
//   link    one channel per ordered pair of ranks, in order, for activations and gradients alike:
//           arrival = max(send, previous arrival on the channel) + transfer
//   block   both ranks stand still: a send waits until the other rank has come to the receive, then both are occupied
//           for `transfer`
enum class TransferMode { async, link, block };
std::string_view name(TransferMode mode);

struct Costs {
  // How long an action takes. Not asked for sends and receives. Unshardings run beside computing, one after the other,
  // from where they stand in the list, and their stage's computing waits for them. So do reductions, from the beginning
  // of the last action that adds to the stage's gradient on, and not to an end before its; the rank waits where they
  // stand.
  std::function<double(const schedule::Action&)> duration;
  double transfer = 0;
  TransferMode mode = TransferMode::async;
};

// Durations of a kind: one for all stages, or one per stage. None: nothing takes any time.
struct StageTimes {
  std::vector<double> forward, backward, input_grad, weight_grad, recompute;
};
// Throws InvalidArgument for a list that is neither of one nor of `stages` times, and for times that are not finite or
// negative.
std::function<double(const schedule::Action&)> per_stage(const StageTimes& times, int stages);

// One thing that took place from begin to end.
struct Span {
  schedule::Action action;
  int rank = 0;
  double begin = 0, end = 0;
  // The span whose end this one's beginning waited for longest; -1: it began at time 0. Of two that ended at the same
  // time the one on the same rank.
  int cause = -1;
  double duration() const { return end - begin; }
};

struct Simulation {
  int ranks = 1;
  std::vector<Span> spans;
  // Indices of spans. By rank the actions of its list, in its order; sends and receives that do not occupy the rank are
  // there with no duration. Unsharding and reductions lie beside the others in time.
  std::vector<std::vector<int>> list_of_rank;
  // Messages on their way, each under the name of its send, and the rank that sends it. None in block mode, where the
  // lists' sends and receives are that.
  std::vector<int> messages;
  double makespan = 0;
  std::vector<double> busy;  // by rank, time spent computing
};

// Block mode needs sends and receives; a table without gets them from schedule::add_communication.
//   throws InvalidArgument for a table on which ranks cannot go on; schedule::validate says why
Simulation simulate(const schedule::Table& table, const Costs& costs);

}  // namespace lockstep::simulate
