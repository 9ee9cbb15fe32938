// How often to repeat a call so that its mean is worth printing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/base/clock.h"

namespace benchmarks {

// Mean over some 0.1 s until every rank is through, after a few to warm up: whoever sends without waiting would else be
// timed alone, at work on what nobody has received yet.
//   agree   gives every rank rank 0's number
template <class Call, class Barrier, class Agree>
double seconds_per_call(Call call, Barrier barrier, Agree agree) {
  const auto mean_of = [&](int64_t repeats) {
    barrier();
    const double start_s = lockstep::now_s();
    for (int64_t i = 0; i < repeats; ++i) call();
    barrier();
    return (lockstep::now_s() - start_s) / static_cast<double>(repeats);
  };
  mean_of(3);
  const double about_s = std::max(mean_of(3), 1e-9);
  const int64_t repeats = agree(static_cast<int64_t>(std::clamp(0.1 / about_s, 5.0, 200'000.0)));
  mean_of(repeats / 10 + 1);
  return mean_of(repeats);
}

}  // namespace benchmarks
