#include <cmath>
#include <filesystem>
#include <iostream>

#include "command.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/share_text.h"
#include "lockstep/data/batch.h"
#include "lockstep/distributed/init.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/world.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/stages.h"
#include "lockstep/spec/toml.h"
#include "lockstep/trace/chrome.h"
#include "lockstep/train/measured_stages.h"
#include "lockstep/train/run.h"
#include "prediction.h"
#include "trace_report.h"

namespace lockstep::cli {
namespace {

struct TrainOptions {
  std::string config, layout;
  std::vector<std::string> overrides;
  int ranks = 0;  // 0: what the layout or the configuration needs
  bool json = false;
  bool predicted = false;  // by the process that started this rank
};

std::chrono::milliseconds deadline_of(const spec::RunPlan& plan) {
  return std::chrono::milliseconds(static_cast<int64_t>(plan.run.deadline_s * 1000));
}

void print_result(const spec::RunPlan& plan, const train::Summary& summary) {
  const std::string directory = plan.run.directory;
  std::cout << "final loss " << summary.final_loss << " nats per token";
  if (std::isfinite(summary.validation_loss)) std::cout << ", validation loss " << summary.validation_loss;
  std::cout << "\nmedian " << static_cast<int64_t>(summary.tokens_per_s_median) << " tokens/s, "
            << summary.step_s_median * 1e3 << " ms a step; recording took " << summary.recorder_share * 100
            << " % of it\n"
            << "metrics " << directory << "/metrics.jsonl, summary " << directory << "/summary.json, trace "
            << directory << "/trace.json (open in Perfetto), weights " << directory << "/weights\n";
  if (plan.parallel.pipeline == 1) return;
  const trace::TraceComparison comparison = compare_run(directory);
  std::cout << "\n" << timelines(comparison) << "\n" << table(comparison);
}

// RUN/simulated.json, where the plan has a pipeline: what trace compare lays the recorded run over.
void predict(const spec::RunPlan& plan, int ranks) {
  if (plan.parallel.pipeline == 1) return;
  std::error_code failed;  // a folder that cannot be made is refused when the run begins
  std::filesystem::create_directories(plan.run.directory, failed);
  if (!failed) trace::write_chrome_file(plan.run.directory + "/simulated.json", predict_step(plan, ranks));
}

// RUN/rankN.log keeps what every rank has to say, also what is not shown.
std::string log_file_of(const spec::RunPlan& plan, int rank) {
  std::error_code failed;  // a folder that cannot be made is refused when the run begins
  std::filesystem::create_directories(plan.run.directory, failed);
  return failed ? "" : text(plan.run.directory, "/rank", rank, ".log");
}

int train_as_rank(spec::RunPlan plan, const TrainOptions& options) {
  const launch::Place place = launch::place_from_environment();
  const bool measures = !options.predicted && spec::awaits_measuring(plan.parallel);
  if (!options.predicted) {
    spec::refuse(spec::validate(plan, place.world_size));
    if (place.rank == 0) {
      plan = train::with_measured_stages(plan, place.world_size);
      predict(plan, place.world_size);
    }
  }
  const auto world = init({.deadline = deadline_of(plan),
                           .show_all_ranks = plan.run.log_all_ranks,
                           .log_file = log_file_of(plan, place.rank)});
  world->set_flight_folder(plan.run.directory);
  if (measures) plan.parallel.stages = comm::shared_text(*world, plan.parallel.stages, 0, "parallel.stages");
  const std::string layout = options.layout.empty() ? to_string(spec::layout_of(plan, world->size())) : options.layout;
  const train::Summary summary = train::run(plan, layout, *world);
  if (world->rank() != 0) return 0;
  if (options.json) {
    std::cout << to_json(summary);
  } else {
    print_result(plan, summary);
  }
  return 0;
}

void show_flight_records(const std::string& folder) {
  try {
    const std::string picture = comm::merge_flight_records(folder);
    std::cerr << "What the ranks were in (lockstep flight " << folder << "):\n" << picture;
  } catch (const InvalidArgument&) {
    // Nobody wrote one: all were killed.
  }
}

// What the axes need; one where they cannot be (which is refused later).
int ranks_of(const spec::ParallelSpec& parallel) {
  constexpr int64_t kMost = 1024;
  int64_t ranks = 1;
  for (const int64_t axis : {std::max<int64_t>(1, parallel.data), parallel.tensor, parallel.pipeline}) {
    if (axis < 1 || axis > kMost) return 1;
    ranks *= axis;
  }
  return ranks > kMost ? 1 : static_cast<int>(ranks);
}

int train(const TrainOptions& options) {
  spec::RunPlan plan = spec::read_plan(options.config, options.overrides);
  int ranks = options.ranks == 0 ? ranks_of(plan.parallel) : options.ranks;
  if (!options.layout.empty()) {
    const spec::Layout layout = spec::parse_layout(options.layout);
    if (options.ranks != 0 && options.ranks != layout.world_size()) {
      throw InvalidArgument(Problem{"--ranks", text(options.ranks),
                                    text("layout ", options.layout, " is for another number of ranks"),
                                    text(layout.world_size())}
                                .message());
    }
    plan = spec::apply(layout, plan);
    ranks = layout.world_size();
  }
  if (launch::place_from_environment().launcher != "none") return train_as_rank(plan, options);
  spec::refuse(spec::validate(plan, ranks));
  const data::Batches batches(plan);  // what is wrong with the data shows before any rank starts
  if (ranks == 1) return train_as_rank(plan, options);
  comm::remove_flight_records(plan.run.directory);
  plan = train::with_measured_stages(plan, ranks);
  predict(plan, ranks);
  std::vector<std::string> command = own_command_line();
  command.insert(command.end(), {"--predicted", "--set", text("parallel.stages=\"", plan.parallel.stages, "\"")});
  const int code = launch::launch({.ranks = ranks, .command = command, .prefix_output = false});
  if (code == PeerLost("").exit_code()) show_flight_records(plan.run.directory);
  return code;
}

}  // namespace

void add_train(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("train", "trains the model of a configuration, on as many ranks as asked for");
  command->footer("Example: lockstep train configs/shakespeare.toml --ranks 4 --set train.steps=200");
  const auto options = std::make_shared<TrainOptions>();
  command->add_option("config", options->config, "the configuration, a TOML file")->required();
  command->add_option("--ranks", options->ranks, "rank processes to start on this machine")
      ->check(within("--ranks", 1, 1024));
  command->add_option("--layout", options->layout, "e.g. dp2-acc4: how the plan is laid out over ranks");
  command->add_option("--set", options->overrides, "section.key=value, over the file's")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "print the summary as one JSON document");
  command->add_flag("--predicted", options->predicted)->group("");  // for rank processes
  command->callback([&chosen, options] { chosen = [options] { return train(*options); }; });
}

}  // namespace lockstep::cli
