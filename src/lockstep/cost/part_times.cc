#include "lockstep/cost/part_times.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::cost {

LinearTime fit_linear_time(std::span<const TimedSize> measured) {
  // Least squares of (alpha + beta n) / t = 1: two normal equations. Where nothing is done no time passes: such a
  // measurement weighs as the shortest that the clock shows.
  constexpr double kShortest = 1e-9;
  double aa = 0, ab = 0, bb = 0, a_sum = 0, b_sum = 0;
  for (const auto& [samples, time_s] : measured) {
    if (!(time_s >= 0) || !std::isfinite(time_s)) {
      throw InvalidArgument(text("time_s = ", time_s, ": must be finite and not negative"));
    }
    const double a = 1 / std::max(time_s, kShortest), b = static_cast<double>(samples) * a;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a_sum += a;
    b_sum += b;
  }
  const double determinant = aa * bb - ab * ab;
  if (!(determinant > 1e-12 * aa * bb)) {
    throw InvalidArgument("samples: a constant and a slope need at least two different sizes");
  }
  const double alpha = (a_sum * bb - b_sum * ab) / determinant, beta = (b_sum * aa - a_sum * ab) / determinant;
  if (alpha < 0) return {.beta_s_per_sample = b_sum / bb};  // the nearest without a constant
  if (beta < 0) return {.alpha_s = a_sum / aa};
  return {alpha, beta};
}

ActionTimes PartTimes::at(int64_t samples) const {
  return {forward.at(samples), backward.at(samples), input_grad.at(samples), weight_grad.at(samples), optimizer_s};
}

PartTimes fit_part_times(std::span<const int64_t> samples, std::span<const ActionTimes> measured) {
  LOCKSTEP_CHECK(samples.size() == measured.size() && !samples.empty(), samples.size(), " sizes, ", measured.size(),
                 " measurements");
  const auto fit = [&](double ActionTimes::* time) {
    std::vector<TimedSize> points;
    for (size_t i = 0; i < samples.size(); ++i) points.push_back({samples[i], measured[i].*time});
    return fit_linear_time(points);
  };
  PartTimes times{.forward = fit(&ActionTimes::forward_s),
                  .backward = fit(&ActionTimes::backward_s),
                  .input_grad = fit(&ActionTimes::input_grad_s),
                  .weight_grad = fit(&ActionTimes::weight_grad_s)};
  for (const ActionTimes& each : measured) times.optimizer_s += each.optimizer_s;
  times.optimizer_s /= static_cast<double>(measured.size());
  return times;
}

ActionTimes stage_times(const ModelTimes& times, const spec::Stage& stage, int64_t samples) {
  ActionTimes sum;
  const auto add = [&](const PartTimes& part, double count) {
    const ActionTimes of_part = part.at(samples);
    sum.forward_s += count * of_part.forward_s;
    sum.backward_s += count * of_part.backward_s;
    sum.input_grad_s += count * of_part.input_grad_s;
    sum.weight_grad_s += count * of_part.weight_grad_s;
    sum.optimizer_s += count * of_part.optimizer_s;
  };
  if (stage.embed) add(times.embedding, 1);
  add(times.block, static_cast<double>(stage.layers.size));
  if (stage.head) add(times.head, 1);
  return sum;
}

MicrobatchCost microbatch_cost(const ModelTimes& times, int64_t layers, int stages, int64_t rows) {
  // A third of forward and backward together, where the formula has forward and twice as much.
  const auto count = static_cast<double>(layers);
  MicrobatchCost cost{.stages = stages, .rows = rows};
  for (const auto& [part, weight] : {std::pair{&times.embedding, 1.0}, {&times.block, count}, {&times.head, 1.0}}) {
    const double share = weight / (3.0 * stages);
    cost.alpha_s += share * (part->forward.alpha_s + part->backward.alpha_s);
    cost.beta_s_per_row += share * (part->forward.beta_s_per_sample + part->backward.beta_s_per_sample);
  }
  return cost;
}

}  // namespace lockstep::cost
