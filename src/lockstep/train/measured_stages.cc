#include "lockstep/train/measured_stages.h"

#include <array>
#include <cmath>

#include "lockstep/base/log.h"
#include "lockstep/distributed/init.h"
#include "lockstep/spec/stages.h"
#include "lockstep/train/stage_timer.h"

namespace lockstep::train {
namespace {

constexpr double kSeconds = 0.3;  // for each part

std::string milliseconds(double seconds) {
  return text(std::round(seconds * 1e5) / 1e2, " ms");
}

}  // namespace

spec::RunPlan with_measured_stages(spec::RunPlan plan, int ranks) {
  if (!spec::awaits_measuring(plan.parallel)) return plan;
  prepare_rank_thread(1);
  const schedule::Table table = spec::step_table(plan, ranks);
  spec::RunPlan of_one_rank = plan;  // tensor ranks share every part alike
  of_one_rank.parallel.tensor = 1;
  of_one_rank.parallel.sequence_parallel = false;
  const auto times_of = [&](const spec::Stage& part) {
    const std::array<int64_t, 1> samples = {plan.train.microbatch};
    return StageTimer(of_one_rank, part).measure(samples, {.seconds = kSeconds}).front();
  };
  const spec::PartCosts costs =
      cost::step_costs(times_of({.embed = true}), times_of({.layers = {0, 1}}), times_of({.head = true}), table);
  plan.parallel.stages = to_string(spec::cut_into_stages(plan, costs));
  log::info("parallel.stages = \"", plan.parallel.stages, "\", as measured: of a step the embedding takes ",
            milliseconds(costs.embedding), ", a layer ", milliseconds(costs.layer), ", the head ",
            milliseconds(costs.head));
  return plan;
}

}  // namespace lockstep::train
