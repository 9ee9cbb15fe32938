// A time that grows in a line with a size: what a micro-batch of b sequences takes, or a message of b bytes.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::cost {

struct LinearTime {
  double alpha_s = 0;  // each, whatever the size
  double beta_s = 0;   // per unit of the size: sequence, byte
  double at(int64_t size) const { return alpha_s + beta_s * static_cast<double>(size); }
};

struct TimedSize {
  int64_t size = 0;
  double time_s = 0;
  int64_t count = 1;  // of what takes alpha each, in this time
};

// alpha and beta for which count alpha + size beta is nearest to the measured times, in the sum of squared relative
// errors, with neither below 0.
//   throws   InvalidArgument: fewer than two different sizes (for their counts), a time that is negative or not finite
LinearTime fit_linear_time(std::span<const TimedSize> measured);

}  // namespace lockstep::cost
