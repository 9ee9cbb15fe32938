// How long something takes that all ranks of a group do together, again and again.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::measure {

// The reduction of every rank's value, on every rank.
inline double over_ranks(comm::ProcessGroup& group, double value, comm::Reduction reduction) {
  group.all_reduce({.data = &value, .count = 1, .type = comm::DataType::f64}, reduction);
  return value;
}

// Of `times` in a row: the mean over them and over the ranks. Ranks begin together.
template <class Once>
double mean_seconds(comm::ProcessGroup& group, Once once, int times) {
  group.barrier();
  const double start_s = now_s();
  for (int i = 0; i < times; ++i) once();
  return over_ranks(group, (now_s() - start_s) / times, comm::Reduction::average);
}

struct Rounds {
  double timed_s = 0;           // in all
  int fewest = 1, most = 1000;  // times in a round
};

// The median of five rounds, of as many times as fill timed_s.
template <class Once>
double median_seconds(comm::ProcessGroup& group, Once once, const Rounds& rounds) {
  constexpr int kRounds = 5;
  const double about_s = mean_seconds(group, once, rounds.fewest);  // the same on all ranks, and so is what follows
  const double fitting = rounds.timed_s / kRounds / std::max(about_s, 1e-9);
  const int times = static_cast<int>(std::clamp<double>(fitting, rounds.fewest, rounds.most));
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) seconds.push_back(mean_seconds(group, once, times));
  std::ranges::sort(seconds);
  return seconds[kRounds / 2];
}

}  // namespace lockstep::measure
