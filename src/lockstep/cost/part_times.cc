#include "lockstep/cost/part_times.h"

#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::cost {

double ActionTimes::of(schedule::Action::Kind kind) const {
  using enum schedule::Action::Kind;
  switch (kind) {
    case forward:
    case recompute:
      return forward_s;
    case backward:
      return backward_s;
    case input_grad:
      return input_grad_s;
    case weight_grad:
      return weight_grad_s;
    default:
      return 0;
  }
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

spec::PartCosts step_costs(const ActionTimes& embedding, const ActionTimes& block, const ActionTimes& head,
                           const schedule::Table& table) {
  const auto seconds = [&](const ActionTimes& part) {
    double of_all_stages = 0;
    for (const auto& actions : table.actions_by_rank) {
      for (const schedule::Action& action : actions) of_all_stages += part.of(action.kind);
    }
    return of_all_stages / table.stages() + part.optimizer_s;
  };
  return {.embedding = seconds(embedding), .layer = seconds(block), .head = seconds(head)};
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
    cost.beta_s_per_row += share * (part->forward.beta_s + part->backward.beta_s);
  }
  return cost;
}

}  // namespace lockstep::cost
