// The files of a run: config.toml, metrics.jsonl (a line a step), summary.json, trace.json, and the weights.
#pragma once

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "lockstep/spec/plan.h"
#include "lockstep/trace/event.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {

struct RankSummary {
  double peak_rss_bytes = 0;
  double compute_s = 0, exposed_communication_s = 0, wait_s = 0;  // over the run
  double bubble_fraction = 0;                                     // idle in the schedule; 0 with one stage
};

struct Summary {
  int64_t steps = 0;
  int ranks = 1;
  std::string layout;
  double final_loss = 0, validation_loss = 0;  // nats per token; NaN (null in JSON) when there is none
  double tokens_per_s_median = 0, step_s_median = 0;
  int64_t params = 0;
  int64_t skipped = 0;
  double recorder_share = 0;  // of a step's time that recording its events costs
  std::vector<RankSummary> per_rank;
};

std::string to_json(const Summary& summary);

// Kept by rank 0.
class RunDirectory {
 public:
  // Makes the folder and begins metrics.jsonl anew.
  //   throws   InvalidArgument naming run.directory when it cannot be written
  RunDirectory(const std::filesystem::path& path, const spec::RunPlan& plan);

  void add_metrics(const StepReport& report);
  void write_summary(const Summary& summary) const;
  void write_trace(std::span<const trace::Event> events) const;
  void write_weights(const spec::ModelSpec& model, const std::vector<nn::Parameter>& whole) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::ofstream metrics_;
};

}  // namespace lockstep::train
