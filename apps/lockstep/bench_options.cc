#include "bench_options.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "command.h"
#include "lockstep/base/units.h"
#include "lockstep/collective/program.h"
#include "lockstep/launch/world.h"
#include "lockstep/measure/account.h"

namespace lockstep::cli {
namespace {

using comm::DataType;
using comm::Operation;
using comm::Reduction;

template <class Value>
using Names = std::vector<std::pair<std::string, Value>>;

// nccl-tests' names beside ours.
const Names<Operation> kOperations = {
    {"all_reduce", Operation::all_reduce}, {"reduce_scatter", Operation::reduce_scatter},
    {"all_gather", Operation::all_gather}, {"broadcast", Operation::broadcast},
    {"reduce", Operation::reduce},         {"scatter", Operation::scatter},
    {"gather", Operation::gather},         {"all_to_all", Operation::all_to_all},
    {"sendrecv", Operation::send}};
const Names<DataType> kTypes = {{"f32", DataType::f32},   {"f64", DataType::f64},       {"bf16", DataType::bf16},
                                {"f16", DataType::f16},   {"i32", DataType::i32},       {"i64", DataType::i64},
                                {"u8", DataType::u8},     {"float", DataType::f32},     {"double", DataType::f64},
                                {"half", DataType::f16},  {"bfloat16", DataType::bf16}, {"int32", DataType::i32},
                                {"int64", DataType::i64}, {"uint8", DataType::u8}};
const Names<Reduction> kReductions = {{"sum", Reduction::sum},
                                      {"average", Reduction::average},
                                      {"min", Reduction::min},
                                      {"max", Reduction::max},
                                      {"avg", Reduction::average}};

template <class Value>
Value named(const Names<Value>& names, const std::string& field, const std::string& text) {
  std::vector<std::string> known;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    known.push_back(name);
  }
  refuse_name(field, text, known);
}

std::vector<Operation> operations_of(const BenchOptions& options) {
  std::vector<Operation> operations;
  if (options.operations == "all") {
    for (const auto& [name, operation] : kOperations) {
      if (!options.tune || operation != Operation::send) operations.push_back(operation);
    }
    return operations;
  }
  for (const std::string& name : split_list(options.operations)) {
    operations.push_back(named(kOperations, "--op", name));
  }
  if (operations.empty()) refuse("--op", options.operations, "must name at least one operation, or all", "all_reduce");
  return operations;
}

std::vector<int64_t> sizes_of(const BenchOptions& options) {
  const int64_t min = parse_size(options.min, "--min"), max = parse_size(options.max, "--max");
  if (min < 1) refuse("--min", options.min, "must be at least 1", "1");
  if (max < min) refuse("--max", options.max, "must not be below --min = " + options.min, options.min);
  std::vector<int64_t> sizes;
  for (int64_t size = min; size <= max; size *= options.factor) {
    sizes.push_back(size);
    if (size > max / options.factor) break;
  }
  return sizes;
}

// Programs of the operation for these ranks, and the backend's own.
std::vector<std::string> all_algorithms(Operation operation, const BenchOptions& options) {
  const auto wanted = measure::in_collective(operation);
  if (!wanted) return {std::string(measure::kAuto)};
  std::vector<std::string> names{std::string(collective::kNative)};
  for (const collective::Algorithm& each : collective::algorithms()) {
    const bool fits = each.operation == *wanted && each.check({.ranks = options.ranks, .root = options.root}).empty();
    if (fits) names.emplace_back(each.name);
  }
  return names;
}

std::vector<std::string> algorithms_of(Operation operation, const BenchOptions& options) {
  if (options.algorithm == measure::kAuto && !options.tune) return {options.algorithm};
  const std::vector<std::string> known = all_algorithms(operation, options);
  if (options.algorithm == "all" || options.tune) return known;
  if (std::ranges::find(known, options.algorithm) == known.end()) {
    const std::string list = known.front() == measure::kAuto ? "auto" : "auto, all, " + join(known);
    refuse("--algorithm", options.algorithm, text(measure::name_of(operation), " has ", list),
           nearest_name(options.algorithm, known));
  }
  return {options.algorithm};
}

std::vector<std::string> backends_of(const BenchOptions& options) {
  std::vector<std::string> names = split_list(options.backends);
  for (const std::string& name : names) {
    launch::find_backend(name);  // refuses what is not there
    if (name == "nccl")
      refuse("--backend", name, "must connect host memory, which is what is measured", "shared_memory");
  }
  const launch::Place place = launch::place_from_environment();
  if (place.launcher != "none" && names.size() > 1 && options.record.empty()) {
    refuse("--backend", options.backends,
           text("must be one under ", place.launcher, ": to compare several, start lockstep bench by itself"),
           names.front());
  }
  if (options.tune && names.size() > 1) {
    refuse("--backend", options.backends, "must be one with --tune: a table is of one backend", names.front());
  }
  if (names.empty()) names.emplace_back(place.launcher == "none" ? "shared_memory" : launch::fitting_backend(place));
  return names;
}

void check_together(const BenchOptions& options, const std::vector<Operation>& operations, DataType type) {
  if (options.root >= options.ranks) {
    refuse("--root", text(options.root), text("must be a rank, 0 to ", options.ranks - 1), text(options.ranks - 1));
  }
  const bool integer = type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
  const Reduction reduction = named(kReductions, "--reduction", options.reduction);
  const auto applies = [&](bool (*has)(Operation)) { return std::ranges::any_of(operations, has); };
  if (integer && reduction == Reduction::average) {
    refuse("--reduction", options.reduction, text("there is no average of ", options.dtype), "sum");
  }
  if (options.reduction != "sum" && !applies([](Operation each) { return comm::reduces(each); })) {
    refuse("--reduction", options.reduction, options.operations + " does not reduce");
  }
  if (options.root != 0 && !applies([](Operation each) { return comm::has_root(each); })) {
    refuse("--root", text(options.root), options.operations + " has no root");
  }
  if (options.tune && std::ranges::find(operations, Operation::send) != operations.end()) {
    refuse("--op", options.operations, "sendrecv has no algorithms to choose from with --tune", "all");
  }
}

// Appending nothing shows whether it can be written, and leaves what is there.
void check_output(const BenchOptions& options) {
  if (options.output.empty()) return;
  if (!std::ofstream(options.output, std::ios::app)) {
    refuse("--output", options.output, "must be a file that can be written");
  }
}

void add_what(CLI::App& command, const std::shared_ptr<BenchOptions>& options) {
  command
      .add_option("--op", options->operations,
                  "all_reduce, reduce_scatter, all_gather, broadcast, reduce, scatter, gather, all_to_all, sendrecv; "
                  "several with commas; all")
      ->capture_default_str();
  command.add_option("--ranks", options->ranks, "to start; under a launcher, its own")
      ->check(within("--ranks", 1, 1024))
      ->capture_default_str();
  command.add_option("--root", options->root, "of broadcast, reduce, scatter and gather")
      ->check(within("--root", 0, 1023))
      ->capture_default_str();
  command.add_flag("--json", options->json, "print one JSON document");
  command.add_option("--record", options->record)->group("");  // both for rank processes
  command.add_option("--rank-backend", options->rank_backend)->group("");
}

std::vector<CLI::Option*> add_how(CLI::App& command, const std::shared_ptr<BenchOptions>& options) {
  return {
      command.add_option("-b,--min", options->min, "smallest size: the longest buffer of a rank")
          ->capture_default_str(),
      command.add_option("-e,--max", options->max, "largest size")->capture_default_str(),
      command.add_option("-f,--factor", options->factor, "from one size to the next")
          ->check(within("--factor", 2, 1 << 30))
          ->capture_default_str(),
      command.add_option("-d,--dtype", options->dtype, "f32, f64, bf16, f16, i32, i64, u8")->capture_default_str(),
      command.add_option("-o,--reduction", options->reduction, "sum, average, min, max")->capture_default_str(),
      command.add_option("-n,--calls", options->calls, "timed in a row; 0: the median of five times some 8 ms")
          ->check(within("--calls", 0, 100'000'000))
          ->capture_default_str(),
      command.add_option("-w,--warm-up", options->warm_up, "calls before them")
          ->check(within("--warm-up", 0, 1'000'000))
          ->capture_default_str(),
      command.add_option("--backend", options->backends,
                         "in_process, shared_memory, mpi; several with commas are compared (default: shared_memory, or "
                         "what fits the launcher)"),
      command.add_option("--algorithm", options->algorithm, "auto, all, native or a name, as --show takes it")
          ->capture_default_str()};
}

}  // namespace

void add_options(CLI::App& command, const std::shared_ptr<BenchOptions>& options) {
  add_what(command, options);
  const std::vector<CLI::Option*> how = add_how(command, options);
  CLI::Option* const tune =
      command.add_flag("--tune", options->tune, "measure all algorithms and write the table of the fastest");
  CLI::Option* const output = command.add_option("--output", options->output, "a file for the table")->needs(tune);
  tune->excludes(how.back());
  CLI::Option* const show =
      command.add_option("--show", options->show, "draw an algorithm instead: ring, direct, binomial_tree ...");
  for (CLI::Option* const option : how) show->excludes(option);
  show->excludes(tune)->excludes(output);
}

BenchPlan plan_of(const BenchOptions& options) {
  const std::vector<Operation> operations = operations_of(options);
  const DataType type = named(kTypes, "--dtype", options.dtype);
  check_together(options, operations, type);
  BenchPlan plan{.backends = backends_of(options)};
  for (const Operation operation : operations) {
    plan.series.push_back(
        {.shape = {operation, type, named(kReductions, "--reduction", options.reduction), options.root},
         .bytes = sizes_of(options),
         .algorithms = algorithms_of(operation, options),
         .leave_out_refused = options.tune || options.algorithm == "all",
         .out_of_place = !options.tune,
         .effort = {options.calls, options.warm_up}});
  }
  check_output(options);
  return plan;
}

}  // namespace lockstep::cli
