// What a rank's list keeps in memory: activations live from one action to another, whatever the times are.
#pragma once

#include <vector>

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

// When a micro-batch's activations on a stage come and go.
struct Lifetime {
  // They come with the forward; or, where the table recomputes, with that: until then only the stage's input is kept.
  enum class From { forward, recompute } from = From::forward;
  // A split backward frees them with its second half, which reads them too; or (a layer whose weight gradient needs
  // nothing of the forward) with its first.
  enum class Until { weight_grad, input_grad } until = Until::weight_grad;
};

// The most that is alive at a time on each rank, in micro-batches of the whole rank: each of a rank's v stages counts
// 1/v. Alive from the beginning of the first action to the end of the last; between two actions what is freed goes
// first.
std::vector<double> in_flight_peak(const Table& table, const Lifetime& lifetime = {});

// For walking along a list: how many (stage, micro-batch) the action brings to life at its beginning (1, or 0 for
// none), and frees at its end.
struct Effect {
  int comes = 0, goes = 0;
};
class InFlight {
 public:
  InFlight(const Table& table, const Lifetime& lifetime);
  Effect effect(const Action& action) const;

 private:
  Lifetime lifetime_;
  bool recomputes_ = false;
};

}  // namespace lockstep::schedule
