// lockstep calibrate microbatch: what a model's parts take on this machine by the size of the micro-batch, and so what
// pipeline stages take and how many micro-batches are best.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "command.h"
#include "lockstep/base/log.h"
#include "lockstep/distributed/init.h"
#include "lockstep/spec/names.h"
#include "lockstep/spec/toml.h"
#include "lockstep/train/stage_timer.h"

namespace lockstep::cli {
namespace {

using json = nlohmann::ordered_json;
using cost::ActionTimes;
using cost::LinearTime;
using cost::PartTimes;

struct CalibrateOptions {
  std::string config, samples = "1,2,4,8", stages;
  std::vector<std::string> overrides;
  double seconds = 2;
  bool json = false;
};

std::vector<int64_t> counts(const std::string& field, const std::string& list) {
  std::vector<int64_t> result;
  for (const std::string& item : split_list(list)) {
    std::istringstream stream(item);
    int64_t count = 0;
    if (!(stream >> count) || !stream.eof() || count < 1 || count > 1 << 20) {
      throw InvalidArgument(
          Problem{field, item, "must be whole numbers from 1, separated by commas", "1,2,4"}.message());
    }
    result.push_back(count);
  }
  return result;
}

// How deep the pipelines are that the best number of micro-batches is printed for.
std::vector<int64_t> depths(const CalibrateOptions& options, const spec::RunPlan& plan) {
  if (!options.stages.empty()) return counts("--stages", options.stages);
  if (plan.parallel.pipeline > 1) return {plan.parallel.pipeline};
  return {2, 4, 8};
}

// Of one pipeline; nothing where no constant was measured: then more micro-batches are always better.
struct Best {
  cost::MicrobatchCost cost;
  std::optional<double> estimate;
  cost::BestMicrobatches found;
};

Best best_of(const cost::ModelTimes& times, const spec::RunPlan& plan, int64_t stages, int64_t rows) {
  Best best{cost::microbatch_cost(times, plan.model.layers, static_cast<int>(stages), rows), {}, {rows, rows}};
  if (!(best.cost.alpha_s > 0) || !(best.cost.beta_s_per_row > 0)) return best;
  best.estimate = best_microbatches_estimate(best.cost);
  best.found = best_microbatches(best.cost);
  return best;
}

struct Calibration {
  spec::RunPlan plan;
  std::vector<int64_t> samples;
  train::ModelMeasurement model;
  std::vector<spec::Stage> stages;  // of the plan
  std::vector<Best> pipelines;

  std::vector<std::tuple<const char*, int64_t, const train::PartMeasurement*>> parts() const {
    return {{"embedding", 1, &model.embedding}, {"layer", plan.model.layers, &model.block}, {"head", 1, &model.head}};
  }
  ActionTimes of(const spec::Stage& stage) const { return stage_times(model.fits(), stage, plan.train.microbatch); }
};

json to_json(const ActionTimes& times) {
  return {{"forward_s", times.forward_s},
          {"backward_s", times.backward_s},
          {"input_grad_s", times.input_grad_s},
          {"weight_grad_s", times.weight_grad_s},
          {"optimizer_s", times.optimizer_s}};
}

json to_json(const LinearTime& time) {
  return {{"alpha_s", time.alpha_s}, {"beta_s_per_sample", time.beta_s}};
}

json to_json(const Calibration& calibration) {
  json parts = json::array(), stages = json::array(), pipelines = json::array();
  for (const auto& [name, count, part] : calibration.parts()) {
    json measured = json::array();
    for (size_t i = 0; i < calibration.samples.size(); ++i) {
      json& row = measured.emplace_back(json{{"samples", calibration.samples[i]}});
      row.update(to_json(part->measured[i]));
    }
    const PartTimes& fit = part->fit;
    parts.push_back({{"name", name},
                     {"count", count},
                     {"measured", measured},
                     {"forward", to_json(fit.forward)},
                     {"backward", to_json(fit.backward)},
                     {"input_grad", to_json(fit.input_grad)},
                     {"weight_grad", to_json(fit.weight_grad)},
                     {"optimizer_s", fit.optimizer_s}});
  }
  for (const spec::Stage& stage : calibration.stages) {
    json& row = stages.emplace_back(json{{"stage", spec::to_string({stage})}});
    row.update(to_json(calibration.of(stage)));
  }
  for (const Best& best : calibration.pipelines) {
    pipelines.push_back({{"stages", best.cost.stages},
                         {"rows", best.cost.rows},
                         {"alpha_s", best.cost.alpha_s},
                         {"beta_s_per_row", best.cost.beta_s_per_row},
                         {"best_estimate", best.estimate ? json(*best.estimate) : json()},
                         {"microbatches", best.found.microbatches},
                         {"microbatches_dividing", best.found.dividing}});
  }
  return {{"precision", spec::name(calibration.plan.train.precision)},
          {"sequence", calibration.plan.model.sequence},
          {"microbatch", calibration.plan.train.microbatch},
          {"cpu_share", calibration.model.cpu_share()},
          {"parts", parts},
          {"stages", stages},
          {"pipelines", pipelines}};
}

void print_times(const char* format, const char* name, const ActionTimes& times) {
  std::printf(format, name, times.forward_s * 1e3, times.backward_s * 1e3, times.input_grad_s * 1e3,
              times.weight_grad_s * 1e3, times.optimizer_s * 1e3);
}

void print(const Calibration& calibration) {
  std::printf("ms, sequences of %ld, %s; I and W: the halves of backward; update: of the optimizer\n\n",
              calibration.plan.model.sequence, std::string(spec::name(calibration.plan.train.precision)).c_str());
  constexpr const char* kRow = "%-16s %10.3f %10.3f %10.3f %10.3f %10.3f\n";
  std::printf("%-16s %10s %10s %10s %10s %10s\n", "part, samples", "forward", "backward", "I", "W", "update");
  for (const auto& [name, count, part] : calibration.parts()) {
    for (size_t i = 0; i < calibration.samples.size(); ++i) {
      print_times(kRow, text(name, ", ", calibration.samples[i]).c_str(), part->measured[i]);
    }
    const PartTimes& fit = part->fit;
    const auto slope = [](const LinearTime& time) { return time.beta_s; };
    print_times(kRow, "  alpha", fit.at(0));
    print_times(kRow, "  beta",
                {slope(fit.forward), slope(fit.backward), slope(fit.input_grad), slope(fit.weight_grad), 0});
  }
  std::printf("\nstages of this plan, micro-batches of %ld\n", calibration.plan.train.microbatch);
  for (const spec::Stage& stage : calibration.stages) {
    print_times(kRow, spec::to_string({stage}).c_str(), calibration.of(stage));
  }
  std::printf(
      "\nM* = sqrt((K-1) beta N / alpha), for K equal stages and N rows a step\n%4s %6s %10s %12s %8s %10s %10s\n", "K",
      "N", "alpha, ms", "beta, ms", "M*", "best", "dividing");
  for (const Best& best : calibration.pipelines) {
    std::printf("%4d %6ld %10.4f %12.4f %8s %10ld %10ld\n", best.cost.stages, best.cost.rows, best.cost.alpha_s * 1e3,
                best.cost.beta_s_per_row * 1e3,
                best.estimate ? text(std::round(*best.estimate * 10) / 10).c_str() : "-", best.found.microbatches,
                best.found.dividing);
  }
}

// Where the plan leaves its cut to measuring, the one that these times make.
std::vector<spec::Stage> stages_of(const spec::RunPlan& plan, const cost::ModelTimes& times, int ranks) {
  if (!spec::awaits_measuring(plan.parallel)) return spec::cut_into_stages(plan);
  const int64_t samples = plan.train.microbatch;
  return spec::cut_into_stages(plan, cost::step_costs(times.embedding.at(samples), times.block.at(samples),
                                                      times.head.at(samples), spec::step_table(plan, ranks)));
}

int calibrate(const CalibrateOptions& options) {
  Calibration calibration{.plan = spec::read_plan(options.config, options.overrides),
                          .samples = counts("--samples", options.samples)};
  const spec::RunPlan& plan = calibration.plan;
  if (std::set(calibration.samples.begin(), calibration.samples.end()).size() < 2) {
    throw InvalidArgument(
        Problem{"--samples", options.samples, "alpha and beta need at least two different sizes", "1,2,4,8"}.message());
  }
  const std::vector<int64_t> stages = depths(options, plan);
  const int64_t data_ranks = std::max<int64_t>(1, plan.parallel.data);
  const int ranks = static_cast<int>(data_ranks * plan.parallel.tensor * plan.parallel.pipeline);
  spec::refuse(spec::validate(plan, ranks));
  const auto world = init();  // measured as training runs; several ranks measure at once, sharing the machine's memory
  calibration.model = train::measure_model(plan, calibration.samples, {.seconds = options.seconds});
  calibration.stages = stages_of(plan, calibration.model.fits(), ranks);
  for (const int64_t depth : stages) {
    calibration.pipelines.push_back(
        best_of(calibration.model.fits(), plan, depth, plan.train.global_batch / data_ranks));
  }
  if (world->rank() != 0) return 0;
  if (plan.run.device == spec::DeviceChoice::cpu && calibration.model.cpu_share() < 0.95) {
    log::warning("other programs had this rank's core for ", std::round(100 * (1 - calibration.model.cpu_share())),
                 " % of the time: measure again on an idle machine");
  }
  if (options.json) {
    std::cout << to_json(calibration).dump(1) << "\n";
  } else {
    print(calibration);
  }
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& app, Chosen& chosen) {
  CLI::App* const calibrate_app = app.add_subcommand("calibrate", "measures for predictions: calibrate microbatch");
  calibrate_app->require_subcommand(1);
  CLI::App* const command = calibrate_app->add_subcommand(
      "microbatch", "what the model's parts take on one rank of this machine, by the size of the micro-batch");
  command->footer(
      "Example: lockstep calibrate microbatch configs/shakespeare.toml --samples 1,2,4,8 --stages 2,4\n"
      "         lockstep launch --ranks 2 -- lockstep calibrate microbatch CONFIG.toml    (rank 0's, while both "
      "compute)");
  const auto options = std::make_shared<CalibrateOptions>();
  command->add_option("config", options->config, "the configuration, a TOML file")->required();
  command->add_option("--samples", options->samples, "sizes of micro-batches to measure, in sequences")
      ->capture_default_str();
  command->add_option("--stages", options->stages,
                      "pipeline depths to print the best number of micro-batches for; default: the plan's, or 2,4,8");
  command->add_option("--seconds", options->seconds, "how long to measure each of embedding, layer and head")
      ->check(within("--seconds", 0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--set", options->overrides, "section.key=value, over the file's")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "print one JSON document");
  command->callback([&chosen, options] { chosen = [options] { return calibrate(*options); }; });
}

}  // namespace lockstep::cli
