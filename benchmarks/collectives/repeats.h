// How often to repeat a call so that its mean is worth printing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/base/clock.h"

namespace benchmarks {

// Mean over some 0.1 s at the rate of a slow implementation, after a tenth as many to warm up.
template <class Call, class Barrier>
double seconds_per_call(int64_t bytes, Call call, Barrier barrier) {
  const int64_t repeats = std::clamp<int64_t>((int64_t{64} << 20) / std::max<int64_t>(bytes, 512), 5, 100'000);
  for (int64_t i = 0; i < repeats / 10 + 2; ++i) call();
  barrier();
  const double start_s = lockstep::now_s();
  for (int64_t i = 0; i < repeats; ++i) call();
  return (lockstep::now_s() - start_s) / static_cast<double>(repeats);
}

}  // namespace benchmarks
