#include "lockstep/cost/microbatches.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::cost {

namespace {

void check(const MicrobatchCost& cost) {
  const auto refuse = [](const char* field, auto value, const char* rule, const char* nearest) {
    throw InvalidArgument(Problem{field, text(value), rule, nearest}.message());
  };
  if (cost.stages < 1) refuse("stages", cost.stages, "must be at least 1", "1");
  if (cost.rows < 1) refuse("rows", cost.rows, "must be at least 1", "1");
  if (!(cost.alpha_s > 0))
    refuse("alpha_s", cost.alpha_s, "must be above 0; with no cost per micro-batch more are always better", "");
  if (!(cost.beta_s_per_row > 0)) refuse("beta_s_per_row", cost.beta_s_per_row, "must be above 0", "");
}

}  // namespace

double pipeline_step_s(const MicrobatchCost& cost, int64_t microbatches) {
  const auto count = static_cast<double>(microbatches);
  return 3 * (count + cost.stages - 1) * (cost.alpha_s + cost.beta_s_per_row * static_cast<double>(cost.rows) / count);
}

double best_microbatches_estimate(const MicrobatchCost& cost) {
  check(cost);
  return std::sqrt((cost.stages - 1) * cost.beta_s_per_row * static_cast<double>(cost.rows) / cost.alpha_s);
}

BestMicrobatches best_microbatches(const MicrobatchCost& cost) {
  const double estimate = std::min(best_microbatches_estimate(cost), static_cast<double>(cost.rows));
  const int64_t below = std::max<int64_t>(1, static_cast<int64_t>(estimate)), above = std::min(below + 1, cost.rows);
  const auto better = [&](int64_t a, int64_t b) { return pipeline_step_s(cost, b) < pipeline_step_s(cost, a) ? b : a; };
  int64_t dividing_below = below, dividing_above = above;
  while (cost.rows % dividing_below != 0) --dividing_below;
  while (cost.rows % dividing_above != 0) ++dividing_above;
  return {better(below, above), better(dividing_below, dividing_above)};
}

}  // namespace lockstep::cost
