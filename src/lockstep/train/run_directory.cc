#include "lockstep/train/run_directory.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/spec/toml.h"
#include "lockstep/trace/chrome.h"

namespace lockstep::train {
namespace {

using json = nlohmann::ordered_json;

json number(double value) {
  return std::isfinite(value) ? json(value) : json(nullptr);
}

}  // namespace

std::string to_json(const Summary& summary) {
  json per_rank = json::array();
  for (const RankSummary& rank : summary.per_rank) {
    per_rank.push_back({{"peak_rss_bytes", static_cast<int64_t>(rank.peak_rss_bytes)},
                        {"compute_s", rank.compute_s},
                        {"exposed_communication_s", rank.exposed_communication_s},
                        {"wait_s", rank.wait_s},
                        {"bubble_fraction", rank.bubble_fraction}});
  }
  const json document = {{"steps", summary.steps},
                         {"ranks", summary.ranks},
                         {"layout", summary.layout},
                         {"final_loss", number(summary.final_loss)},
                         {"validation_loss", number(summary.validation_loss)},
                         {"tokens_per_s_median", number(summary.tokens_per_s_median)},
                         {"step_s_median", number(summary.step_s_median)},
                         {"params", summary.params},
                         {"skipped", summary.skipped},
                         {"recorder_share", summary.recorder_share},
                         {"per_rank", per_rank}};
  return document.dump(1) + "\n";
}

RunDirectory::RunDirectory(const std::filesystem::path& path, const spec::RunPlan& plan) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  metrics_.open(path_ / "metrics.jsonl", std::ios::trunc);
  if (error || !metrics_) {
    throw InvalidArgument(
        Problem{"run.directory", path.string(), "must be a folder that can be made and written", ""}.message());
  }
  checkpoint::write_file(path_ / "config.toml", spec::to_toml(plan));
}

void RunDirectory::add_metrics(const StepReport& report) {
  const json line = {{"step", report.step},
                     {"loss", number(report.loss)},
                     {"grad_norm", number(report.grad_norm)},
                     {"lr", report.lr},
                     {"tokens_per_s", static_cast<double>(report.tokens) / report.step_s},
                     {"step_s", report.step_s},
                     {"skipped", report.skipped},
                     {"loss_scale", report.loss_scale}};
  metrics_ << line.dump() << '\n' << std::flush;
  if (!metrics_) throw Error(text("cannot write ", (path_ / "metrics.jsonl").string(), ": is the disk full?"));
}

void RunDirectory::write_summary(const Summary& summary) const {
  checkpoint::write_file(path_ / "summary.json", to_json(summary));
}

void RunDirectory::write_trace(std::span<const trace::Event> events) const {
  trace::write_chrome_file(path_ / "trace.json", events);
}

void RunDirectory::write_weights(const spec::ModelSpec& model, const std::vector<nn::Parameter>& whole) const {
  checkpoint::save_weights(path_ / "weights", model, whole);
}

}  // namespace lockstep::train
