#include "lockstep/cost/linear_time.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::cost {

LinearTime fit_linear_time(std::span<const TimedSize> measured) {
  // Least squares of (alpha m + beta n) / t = 1: two normal equations. Where nothing is done no time passes: such a
  // measurement weighs as the shortest that the clock shows.
  constexpr double kShortest = 1e-9;
  double aa = 0, ab = 0, bb = 0, a_sum = 0, b_sum = 0;
  for (const auto& [size, time_s, count] : measured) {
    if (!(time_s >= 0) || !std::isfinite(time_s)) {
      throw InvalidArgument(text("time_s = ", time_s, ": must be finite and not negative"));
    }
    const double a = static_cast<double>(count) / std::max(time_s, kShortest);
    const double b = static_cast<double>(size) / std::max(time_s, kShortest);
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a_sum += a;
    b_sum += b;
  }
  const double determinant = aa * bb - ab * ab;
  if (!(determinant > 1e-12 * aa * bb)) {
    throw InvalidArgument("sizes: a constant and a slope need at least two different ones");
  }
  const double alpha = (a_sum * bb - b_sum * ab) / determinant, beta = (b_sum * aa - a_sum * ab) / determinant;
  if (alpha < 0) return {.beta_s = b_sum / bb};  // the nearest without a constant
  if (beta < 0) return {.alpha_s = a_sum / aa};
  return {alpha, beta};
}

}  // namespace lockstep::cost
