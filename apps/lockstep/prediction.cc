#include "prediction.h"

#include <algorithm>
#include <map>
#include <thread>

#include "lockstep/distributed/init.h"
#include "lockstep/measure/message_time.h"
#include "lockstep/simulate/analysis.h"
#include "lockstep/spec/stages.h"
#include "lockstep/train/build.h"
#include "lockstep/train/stage_timer.h"

namespace lockstep::cli {
namespace {

using schedule::Action;

constexpr double kSeconds = 2;  // for all stages

std::vector<cost::ActionTimes> stage_times(spec::RunPlan plan) {
  const std::vector<spec::Stage> stages = spec::cut_into_stages(plan);
  plan.parallel.tensor = 1;
  plan.parallel.sequence_parallel = false;
  std::vector<cost::ActionTimes> times;
  for (const spec::Stage& stage : stages) {
    train::StageTimer timer(plan, stage);
    const int64_t samples[] = {plan.train.microbatch};
    times.push_back(timer.measure(samples, {.seconds = kSeconds / static_cast<double>(stages.size())}).front());
  }
  return times;
}

// The rank updates all of its stages at once.
double update_s(const std::vector<cost::ActionTimes>& times, const std::vector<int>& rank_of_stage) {
  std::map<int, double> of_rank;
  for (size_t stage = 0; stage < times.size(); ++stage) of_rank[rank_of_stage[stage]] += times[stage].optimizer_s;
  double longest = 0;
  for (const auto& [rank, seconds] : of_rank) longest = std::max(longest, seconds);
  return longest;
}

// Of one micro-batch, from stage to stage: its activations, or their gradient.
int64_t message_bytes(const spec::RunPlan& plan) {
  const int64_t ranks = plan.parallel.sequence_parallel ? plan.parallel.tensor : 1;
  const int64_t positions = (plan.model.sequence + ranks - 1) / ranks;
  const auto width = static_cast<int64_t>(at::elementSize(train::scalar_type(plan.train.precision)));
  return plan.train.microbatch * positions * plan.model.hidden * width;
}

simulate::Costs costs_of(const spec::RunPlan& plan, const schedule::Table& table, int ranks) {
  const std::vector<cost::ActionTimes> times = stage_times(plan);
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double slower = std::max(1.0, ranks / cores) / static_cast<double>(plan.parallel.tensor);
  const double update = update_s(times, table.rank_of_stage);
  const auto seconds = [times, update](const Action& action) {
    if (action.kind == Action::Kind::optimizer_step) return update;
    return times.at(static_cast<size_t>(action.stage)).of(action.kind);
  };
  const int64_t bytes = message_bytes(plan);
  return {.duration = [seconds, slower](const Action& action) { return slower * seconds(action); },
          .transfer = measure::message_time(bytes).at(bytes)};
}

}  // namespace

std::vector<trace::Event> predict_step(const spec::RunPlan& plan, int ranks) {
  prepare_rank_thread(1);
  const mesh::Mesh mesh = spec::make_mesh(plan.parallel, ranks);
  const schedule::Table table = spec::step_table(plan, ranks);
  const auto of_pipeline = simulate::events(simulate::simulate(table, costs_of(plan, table, ranks)));
  std::vector<trace::Event> events;
  for (int rank = 0; rank < ranks; ++rank) {
    for (trace::Event event : of_pipeline) {
      if (event.rank != mesh.coordinates(rank)[mesh::Axis::pipeline] || event.track != trace::Track::compute) continue;
      event.rank = rank;
      events.push_back(event);
    }
  }
  return events;
}

}  // namespace lockstep::cli
