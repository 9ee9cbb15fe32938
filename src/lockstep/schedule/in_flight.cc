#include "lockstep/schedule/in_flight.h"

#include <algorithm>
#include <set>

namespace lockstep::schedule {

namespace {

using Kind = Action::Kind;

double peak_of(const std::vector<Action>& actions, const InFlight& in_flight) {
  std::set<int> stages;
  int alive = 0, peak = 0;
  for (const Action& action : actions) {
    if (action.stage >= 0) stages.insert(action.stage);
    const auto [comes, goes] = in_flight.effect(action);
    alive += comes;
    peak = std::max(peak, alive);
    alive -= goes;
  }
  return stages.empty() ? 0 : static_cast<double>(peak) / static_cast<double>(stages.size());
}

}  // namespace

InFlight::InFlight(const Table& table, const Lifetime& lifetime) : lifetime_(lifetime) {
  for (const auto& actions : table.actions_by_rank) {
    recomputes_ = recomputes_ || std::ranges::count(actions, Kind::recompute, &Action::kind) > 0;
  }
}

Effect InFlight::effect(const Action& action) const {
  const bool from_recompute = recomputes_ && lifetime_.from == Lifetime::From::recompute;
  const bool until_first_half = lifetime_.until == Lifetime::Until::input_grad;
  return {.comes = action.kind == (from_recompute ? Kind::recompute : Kind::forward),
          .goes = until_first_half ? makes_input_gradient(action.kind) : completes_gradient(action.kind)};
}

std::vector<double> in_flight_peak(const Table& table, const Lifetime& lifetime) {
  const InFlight in_flight(table, lifetime);
  std::vector<double> peaks;
  for (const auto& actions : table.actions_by_rank) peaks.push_back(peak_of(actions, in_flight));
  return peaks;
}

}  // namespace lockstep::schedule
