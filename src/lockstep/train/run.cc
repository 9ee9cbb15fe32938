#include "lockstep/train/run.h"

#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "lockstep/base/log.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/train/out_of_memory.h"
#include "lockstep/train/progress.h"

namespace lockstep::train {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

// What one event costs, measured on a recorder of its own.
double seconds_per_event() {
  constexpr int kEvents = 20000;
  trace::Recorder recorder(0, 1024);
  const double start_s = now_s();
  for (int i = 0; i < kEvents; ++i) const trace::Span span(&recorder, trace::Track::compute, "forward", 0, 0, i);
  return (now_s() - start_s) / kEvents;
}

std::vector<RankSummary> gather_rank_summaries(const RankSummary& mine, comm::ProcessGroup& world) {
  at::Tensor input = torch::tensor(
      {mine.peak_rss_bytes, mine.compute_s, mine.exposed_communication_s, mine.wait_s, mine.bubble_fraction},
      at::kDouble);
  at::Tensor all = at::empty({world.size(), input.numel()}, at::kDouble);
  all_gather_into_tensor(all, input, world, {.tag = "rank summaries"});
  std::vector<RankSummary> result;
  for (int rank = 0; rank < world.size(); ++rank) {
    const double* values = all[rank].const_data_ptr<double>();
    result.push_back({values[0], values[1], values[2], values[3], values[4]});
  }
  return result;
}

// Events are plain bytes; ranks send theirs to rank 0, which returns all of them.
std::vector<trace::Event> gather_events(std::vector<trace::Event> events, comm::ProcessGroup& world) {
  const auto bytes_of = [](std::vector<trace::Event>& list) {
    return at::from_blob(list.data(), {static_cast<int64_t>(list.size() * sizeof(trace::Event))}, at::kByte);
  };
  at::Tensor count = torch::tensor({static_cast<int64_t>(events.size())}, at::kLong),
             counts = at::empty({world.size()}, at::kLong);
  all_gather_into_tensor(counts, count, world, {.tag = "trace sizes"});
  if (world.rank() != 0) {
    send(bytes_of(events), 0, world, {.tag = "trace"});
    return {};
  }
  for (int rank = 1; rank < world.size(); ++rank) {
    std::vector<trace::Event> theirs(static_cast<size_t>(counts[rank].item<int64_t>()));
    at::Tensor wire = bytes_of(theirs);
    recv(wire, rank, world, {.tag = "trace"});
    events.insert(events.end(), theirs.begin(), theirs.end());
  }
  return events;
}

// Where the last `steps` steps began, to cut the trace there.
class StepStarts {
 public:
  explicit StepStarts(int64_t steps) : starts_(static_cast<size_t>(std::max<int64_t>(steps, 1)), 0.0) {}
  void add(double start_s) { starts_[next_++ % starts_.size()] = start_s; }
  double oldest() const { return next_ < starts_.size() ? starts_.front() : starts_[next_ % starts_.size()]; }

 private:
  std::vector<double> starts_;
  size_t next_ = 0;
};

void announce(const spec::RunPlan& plan, const Trainer& trainer, const Summary& summary) {
  log::info("model ", plan.model.preset.empty() ? "" : plan.model.preset + ", ", summary.params, " parameters; ",
            summary.ranks, " rank(s), layout ", summary.layout, "; ", plan.train.global_batch, " sequences of ",
            plan.model.sequence, " a step, ", trainer.samples_per_rank(), " on this rank in ",
            trainer.executor().table().microbatches, " micro-batch(es)");
}

Summary run_steps(const spec::RunPlan& plan, const std::string& layout, comm::ProcessGroup& world) {
  trace::Recorder recorder(world.rank());
  Trainer trainer(plan, world, {.recorder = &recorder});
  std::optional<RunDirectory> directory;
  if (world.rank() == 0) directory.emplace(plan.run.directory, plan);
  Summary summary{.steps = plan.train.steps,
                  .ranks = world.size(),
                  .layout = layout,
                  .final_loss = std::numeric_limits<double>::quiet_NaN(),
                  .validation_loss = std::numeric_limits<double>::quiet_NaN(),
                  .params = spec::parameter_count(plan.model)};
  announce(plan, trainer, summary);

  Progress progress(plan.train.steps);
  StepStarts step_starts(plan.run.trace_steps);
  std::vector<double> step_seconds, tokens_per_s;
  RankSummary mine;
  double bubble_s = 0;
  for (int64_t step = 1; step <= plan.train.steps; ++step) {
    step_starts.add(now_s());
    const StepReport report = trainer.step();
    if (directory) {
      directory->add_metrics(report);
      progress.show(report);
    }
    step_seconds.push_back(report.step_s);
    tokens_per_s.push_back(static_cast<double>(report.tokens) / report.step_s);
    mine.compute_s += report.compute_s;
    mine.exposed_communication_s += report.exposed_communication_s;
    mine.wait_s += report.wait_s;
    bubble_s += report.bubble_s;
    summary.final_loss = report.loss;
    summary.skipped += report.skipped;
    const bool last = step == plan.train.steps;
    if (plan.run.validate_every > 0 && (last || step % plan.run.validate_every == 0)) {
      summary.validation_loss = trainer.validation_loss();
      if (directory) progress.line(text("step ", step, " validation loss ", summary.validation_loss));
    }
  }
  if (directory) progress.finish();

  summary.step_s_median = median(step_seconds);
  summary.tokens_per_s_median = median(tokens_per_s);
  const double events_per_step =
      static_cast<double>(recorder.recorded()) / static_cast<double>(std::max<int64_t>(plan.train.steps, 1));
  summary.recorder_share = plan.train.steps > 0 ? events_per_step * seconds_per_event() / summary.step_s_median : 0;
  mine.peak_rss_bytes = peak_rss_bytes();
  mine.bubble_fraction = bubble_s / std::max(std::accumulate(step_seconds.begin(), step_seconds.end(), 0.0), 1e-300);
  summary.per_rank = gather_rank_summaries(mine, world);
  world.set_recorder(nullptr);
  const auto events = gather_events(recorder.events(step_starts.oldest()), world);
  const std::vector<nn::Parameter> weights = trainer.parameters_to_save();
  if (directory) {
    directory->write_trace(events);
    directory->write_weights(plan.model, weights);
    directory->write_summary(summary);
  }
  barrier(world, {.tag = "end of run"});
  return summary;
}

}  // namespace

Summary run(const spec::RunPlan& plan, const std::string& layout, comm::ProcessGroup& world) {
  Summary summary;
  explaining_out_of_memory(plan, world, [&] { summary = run_steps(plan, layout, world); });
  return summary;
}

}  // namespace lockstep::train
