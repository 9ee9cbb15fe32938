// lockstep verify: trains the same few steps in each layout and in the plain loop, and compares every parameter.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "command.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/init.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/launch/world.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/toml.h"
#include "lockstep/train/measured_stages.h"
#include "lockstep/train/plain_loop.h"
#include "lockstep/train/trainer.h"

namespace lockstep::cli {
namespace {

using json = nlohmann::ordered_json;

struct VerifyOptions {
  std::string config, layouts = "single,dp2,dp3,dp4,dp2-acc4", precision = "fp64", backend = "in_process", record;
  std::vector<std::string> overrides;
  bool json = false;
};

struct Verdict {
  std::string layout;
  train::Comparison comparison;
  bool pass = false;
};

train::RunRecord run_rank(const spec::RunPlan& plan, comm::ProcessGroup& world) {
  prepare_rank_thread(1);
  train::RunRecord record;
  train::Trainer trainer(plan, world, {.record = &record});
  for (int64_t step = 0; step < plan.train.steps; ++step) trainer.step();
  trainer.record_end(record);
  return record;
}

// Every rank must hold the same result, so every rank's record is returned.
std::vector<train::RunRecord> run_in_process(const spec::RunPlan& plan, int ranks) {
  std::vector<train::RunRecord> records(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& world) {
    log::set_thread_rank(world.rank());
    records[static_cast<size_t>(world.rank())] = run_rank(plan, world);
  });
  return records;
}

std::string record_file(const std::string& folder, int rank) {
  return text(folder, "/rank", rank, ".safetensors");
}

// This program again as rank processes, which leave their records in a folder.
std::vector<train::RunRecord> run_as_processes(const VerifyOptions& options, const std::string& layout,
                                               const std::string& stages, int ranks) {
  char folder[] = "/tmp/lockstep-verify-XXXXXX";
  if (mkdtemp(folder) == nullptr) throw InvalidArgument("cannot make a folder in /tmp for the ranks' records");
  std::vector<std::string> command{own_path(),    "verify",          options.config, "--layouts", layout,
                                   "--precision", options.precision, "--record",     folder};
  for (const std::string& setting : options.overrides) command.insert(command.end(), {"--set", setting});
  command.insert(command.end(), {"--set", text("parallel.stages=\"", stages, "\"")});
  const int code = options.backend == "mpi"
                       ? launch::mpirun({.ranks = ranks, .command = command})
                       : launch::launch({.ranks = ranks, .command = command, .prefix_output = true});
  std::vector<train::RunRecord> records;
  for (int rank = 0; rank < ranks && code == 0; ++rank)
    records.push_back(train::read_record(record_file(folder, rank)));
  std::filesystem::remove_all(folder);
  if (code != 0) throw PeerLost(text("layout ", layout, ": the ranks ended with exit code ", code));
  return records;
}

int leave_record(const spec::RunPlan& plan, const std::string& folder) {
  const auto world = init();
  write_record(record_file(folder, world->rank()), run_rank(plan, *world));
  barrier(*world);
  return 0;
}

// One process adds what embedding and head give their table micro-batch by micro-batch; stages add them at the end.
bool has_tied_stages(const spec::RunPlan& plan) {
  return plan.model.tie_embeddings && plan.parallel.pipeline * plan.parallel.chunks > 1;
}

// conventions of docs/verify.md
bool within_tolerance(const train::Comparison& c, const spec::RunPlan& plan, bool must_be_bitwise) {
  if (must_be_bitwise && !c.bitwise) return false;
  if (spec::is_low(plan.train.precision)) {
    // Of tensor ranks' partial sums each is rounded to the low type, and of a tied table on two stages both gradients
    // instead of their sum; else only fp32 sums differ.
    const bool rounded =
        plan.train.gradient_dtype == spec::GradientDtype::model || plan.parallel.tensor > 1 || has_tied_stages(plan);
    return c.max_rel_loss <= 2e-2 && c.first_rel_grad <= (rounded ? 5e-2 : 1e-5);
  }
  if (plan.train.precision == spec::Precision::fp64) {
    return c.max_rel_loss <= 1e-10 && c.max_rel_grad <= 1e-10 && c.max_rel_param <= 1e-10 && c.max_rel_state <= 1e-10 &&
           c.rel_norm <= 1e-10;
  }
  return c.max_rel_loss <= 1e-5 && c.max_rel_grad <= 1e-4;
}

train::Comparison worst_of(const train::RunRecord& reference, const std::vector<train::RunRecord>& ranks) {
  train::Comparison worst;
  for (const train::RunRecord& rank : ranks) {
    const train::Comparison c = compare(reference, rank);
    if (!(c.max_rel_grad <= worst.max_rel_grad)) worst.worst_parameter = c.worst_parameter;
    if (!(c.max_rel_param <= worst.max_rel_param)) worst.worst_weight = c.worst_weight;
    worst.max_rel_loss = std::max(worst.max_rel_loss, c.max_rel_loss);
    worst.max_rel_grad = std::max(worst.max_rel_grad, c.max_rel_grad);
    worst.first_rel_grad = std::max(worst.first_rel_grad, c.first_rel_grad);
    worst.max_rel_param = std::max(worst.max_rel_param, c.max_rel_param);
    worst.max_rel_state = std::max(worst.max_rel_state, c.max_rel_state);
    worst.rel_norm = std::max(worst.rel_norm, c.rel_norm);
    worst.bitwise = worst.bitwise && c.bitwise;
  }
  return worst;
}

spec::RunPlan plan_of(const VerifyOptions& options, const spec::Layout& layout) {
  auto overrides = options.overrides;
  overrides.push_back("train.precision=" + options.precision);
  const spec::RunPlan plan = spec::apply(layout, spec::read_plan(options.config, overrides));
  spec::refuse(spec::validate(plan, layout.world_size()));
  return plan;
}

void print(const std::vector<Verdict>& verdicts, bool as_json) {
  size_t longest = 20;
  for (const Verdict& verdict : verdicts) longest = std::max(longest, verdict.layout.size());
  const int width = static_cast<int>(longest);
  if (!as_json)
    std::printf("%-*s %9s %9s %9s %9s %9s %-7s %-5s %s\n", width, "layout", "loss", "gradient", "norm", "weight",
                "state", "bitwise", "pass", "worst gradient");
  json rows = json::array();
  for (const auto& [layout, c, pass] : verdicts) {
    if (!as_json) {
      std::printf("%-*s %9.1e %9.1e %9.1e %9.1e %9.1e %-7s %-5s %s\n", width, layout.c_str(), c.max_rel_loss,
                  c.max_rel_grad, c.rel_norm, c.max_rel_param, c.max_rel_state, c.bitwise ? "true" : "false",
                  pass ? "true" : "FALSE", c.worst_parameter.c_str());
    }
    rows.push_back({{"name", layout},
                    {"max_rel_loss", c.max_rel_loss},
                    {"max_rel_grad", c.max_rel_grad},
                    {"first_rel_grad", c.first_rel_grad},
                    {"max_rel_param", c.max_rel_param},
                    {"max_rel_state", c.max_rel_state},
                    {"rel_norm", c.rel_norm},
                    {"worst_parameter", c.worst_parameter},
                    {"worst_weight", c.worst_weight},
                    {"bitwise", c.bitwise},
                    {"pass", pass}});
  }
  if (as_json) std::cout << json{{"layouts", rows}}.dump(1) << "\n";
}

int verify(const VerifyOptions& options) {
  const auto names = split_list(options.layouts);
  if (names.empty())
    throw InvalidArgument(Problem{"--layouts", options.layouts, "must name at least one layout", "single"}.message());
  std::vector<spec::Layout> layouts;
  for (const std::string& name : names) layouts.push_back(spec::parse_layout(name));
  for (const spec::Layout& layout : layouts) plan_of(options, layout);  // refuse before anything runs
  if (!options.record.empty()) return leave_record(plan_of(options, layouts.at(0)), options.record);
  if (const launch::Place place = launch::place_from_environment(); place.world_size > 1) {
    throw InvalidArgument(text("verify starts the ranks of each layout itself, but ", place.launcher, " started ",
                               place.world_size, " of it; start one, and choose with --backend"));
  }
  if (options.backend != "in_process") launch::find_backend(options.backend);  // refuses what is not there

  prepare_rank_thread(1);
  std::map<std::tuple<int64_t, spec::Reduction, spec::Precision>, train::RunRecord> references;
  std::vector<Verdict> verdicts;
  bool all_pass = true;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const int ranks = layouts[i].world_size();
    const spec::RunPlan plan = train::with_measured_stages(plan_of(options, layouts[i]), ranks);
    const auto key = std::tuple(plan.train.microbatch, plan.parallel.reduction, plan.train.precision);
    if (!references.contains(key)) references[key] = train::plain_loop(plan);
    const auto records = options.backend == "in_process"
                             ? run_in_process(plan, ranks)
                             : run_as_processes(options, names[i], plan.parallel.stages, ranks);
    Verdict& verdict = verdicts.emplace_back(Verdict{names[i], worst_of(references[key], records), false});
    // Tensor ranks add inside of layers, in an order of their own.
    const bool must_be_bitwise =
        plan.parallel.reduction == spec::Reduction::fixed_tree && plan.parallel.tensor == 1 && !has_tied_stages(plan);
    verdict.pass = within_tolerance(verdict.comparison, plan, must_be_bitwise);
    all_pass = all_pass && verdict.pass;
  }
  print(verdicts, options.json);
  return all_pass ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Chosen& chosen) {
  CLI::App* command =
      app.add_subcommand("verify", "proves that layouts train as one process does, parameter by parameter");
  command->footer(
      "Example: lockstep verify configs/verify.toml --layouts single,dp2,dp4-fixed_tree --backend shared_memory");
  const auto options = std::make_shared<VerifyOptions>();
  command->add_option("config", options->config, "the configuration, a TOML file")->required();
  command->add_option("--layouts", options->layouts, "comma-separated layout names")->capture_default_str();
  command->add_option("--precision", options->precision, "fp64, fp32, bf16 or fp16")
      ->check(one_of("--precision", {"fp64", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command
      ->add_option("--backend", options->backend,
                   "in_process (ranks are threads), shared_memory (processes) or mpi (starts mpirun)")
      ->check(one_of("--backend", {"in_process", "shared_memory", "mpi"}))
      ->capture_default_str();
  command->add_option("--set", options->overrides, "section.key=value, over the file's")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "print one JSON document");
  command->add_option("--record", options->record)->group("");  // for rank processes
  command->callback([&chosen, options] { chosen = [options] { return verify(*options); }; });
}

}  // namespace lockstep::cli
