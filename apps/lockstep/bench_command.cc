// lockstep bench collectives: times and checks every operation over any backend, draws programs, and writes the table
// that chooses between them.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "bench_options.h"
#include "bench_report.h"
#include "command.h"
#include "lockstep/collective/count.h"
#include "lockstep/collective/draw.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/launch/world.h"

namespace lockstep::cli {
namespace {

using json = nlohmann::ordered_json;

// On every rank; rows are printed by rank 0 as they come, unless they are for a program.
BenchResult measure_on(comm::ProcessGroup& group, const BenchOptions& options, const BenchPlan& plan) {
  BenchResult result;
  RowPrinter printer;
  const auto run = [&](const measure::Series& series) {
    const auto rows = measure::measure(group, series, [&](const measure::Row& row) {
      if (group.rank() == 0 && !options.json) printer(row);
    });
    result.rows.insert(result.rows.end(), rows.begin(), rows.end());
    return rows;
  };
  collective::RuleTable table;
  for (const measure::Series& series : plan.series) {
    const auto rows = run(series);
    if (!options.tune) continue;
    for (const collective::Rule& rule : measure::fastest(rows)) table.push_back(rule);
  }
  if (options.tune) {
    table = measure::shared_table(group, measure::completed(table, group.backend()));
    result.table = to_string(table);
    group.set_rules(table);
    for (measure::Series series : plan.series) {  // what the table chooses, checked too
      series.algorithms = {std::string(measure::kAuto)};
      run(series);
    }
  }
  const bool long_all_reduce = std::ranges::any_of(result.rows, [](const measure::Row& row) {
    return row.shape.operation == comm::Operation::all_reduce && row.bytes >= kLongBytes && row.hosts == 1;
  });
  if (long_all_reduce) result.copy_bytes_per_s[std::string(group.backend())] = measure::copy_bandwidth(group);
  return result;
}

// Prints what is not printed yet, writes the table, and returns the exit code.
int finish(const BenchOptions& options, const BenchResult& result) {
  if (!options.output.empty()) std::ofstream(options.output) << result.table;
  if (options.json) {
    std::cout << to_json(result).dump(1) << "\n";
  } else {
    print_accounts(result);
    if (!result.table.empty()) std::cout << "\n" << result.table;
  }
  const bool wrong = std::ranges::any_of(result.rows, [](const measure::Row& row) { return row.wrong != 0; });
  return wrong ? 1 : 0;
}

int as_rank(const BenchOptions& options, const BenchPlan& plan) {
  const std::string backend = options.rank_backend.empty() ? plan.backends.front() : options.rank_backend;
  const auto world = launch::world_from_environment({.backend = backend});
  const BenchResult result = measure_on(*world, options, plan);
  if (world->rank() != 0) return 0;
  if (options.record.empty()) return finish(options, result);
  std::ofstream(options.record) << to_json(result);
  return 0;
}

// This program again as rank processes; rank 0 leaves the result in a file.
void run_processes(const BenchOptions& options, const std::string& backend, BenchResult& result) {
  char folder[] = "/tmp/lockstep-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) throw Error("cannot make a folder in /tmp for the ranks' result");
  const std::string record = text(folder, "/result.json");
  std::vector<std::string> command = own_command_line();
  command.insert(command.end(), {"--record", record, "--rank-backend", backend});
  const int code = backend == "mpi"
                       ? launch::mpirun({.ranks = options.ranks, .command = command})
                       : launch::launch({.ranks = options.ranks, .command = command, .prefix_output = false});
  if (code == 0) add_from_json(result, json::parse(std::ifstream(record)));
  std::filesystem::remove_all(folder);
  if (code != 0) throw PeerLost(text("backend ", backend, ": the ranks ended with exit code ", code));
}

void run_threads(const BenchOptions& options, const BenchPlan& plan, BenchResult& result) {
  comm::run_ranks(options.ranks, {}, [&](comm::ProcessGroup& world) {
    const BenchResult own = measure_on(world, options, plan);
    if (world.rank() == 0) add_from_json(result, to_json(own));
  });
}

// A picture, and what is sent: in shares of S, which is a vector (broadcast, reduce, all_reduce), one rank's block of
// it, or all that a rank sends in an all_to_all.
int show(const BenchOptions& options, const BenchPlan& plan) {
  const auto operation = measure::in_collective(plan.series.front().shape.operation);
  if (plan.series.size() > 1 || !operation) {
    throw InvalidArgument(
        Problem{"--op", options.operations, "must be one operation that has algorithms, with --show", "all_reduce"}
            .message());
  }
  const auto program = make_program(*operation, options.show, {.ranks = options.ranks, .root = options.root});
  const bool pairs = division(*operation) == collective::Division::per_pair;
  const int64_t unit = division(*operation) == collective::Division::whole ? program.pieces : pairs ? options.ranks : 1;
  const auto traffic = count(program, piece_sizes(program, pairs ? 1 : unit), 1);
  int64_t messages = 0, busiest = 0, all = 0;
  for (const collective::Traffic& each : traffic) {
    messages = std::max(messages, each.messages_sent);
    busiest = std::max(busiest, each.bytes_sent);
    all += each.bytes_sent;
  }
  const double share = static_cast<double>(busiest) / static_cast<double>(unit);
  const double total = static_cast<double>(all) / static_cast<double>(unit);
  if (options.json) {
    const json document = {{"op", name(*operation)},   {"algorithm", options.show}, {"ranks", options.ranks},
                           {"rounds", program.rounds}, {"messages", messages},      {"busiest_rank_sends", share},
                           {"all_ranks_send", total},  {"picture", draw(program)}};
    std::cout << document.dump(1) << "\n";
  } else {
    std::cout << draw(program) << "\n"
              << program.rounds << " rounds; the busiest rank sends " << share << " S in " << messages
              << " messages, all ranks together " << total << " S; S is "
              << (unit == 1 ? "one rank's block"
                  : pairs   ? "what a rank holds"
                            : "the vector")
              << "\n";
  }
  return 0;
}

int bench(BenchOptions options) {
  const launch::Place place = launch::place_from_environment();
  if (place.launcher != "none") options.ranks = place.world_size;
  const BenchPlan plan = plan_of(options);
  if (!options.show.empty()) return show(options, plan);
  if (place.launcher != "none") return as_rank(options, plan);
  BenchResult result;
  for (const std::string& backend : plan.backends) {
    if (backend == "in_process") {
      run_threads(options, plan, result);
    } else {
      run_processes(options, backend, result);
    }
  }
  return finish(options, result);
}

}  // namespace

void add_bench(CLI::App& app, Chosen& chosen) {
  CLI::App* const bench_app = app.add_subcommand("bench", "measures: bench collectives");
  bench_app->require_subcommand(1);
  CLI::App* const command = bench_app->add_subcommand(
      "collectives", "times and checks collectives over any backend; draws and tunes their algorithms");
  command->footer(
      "Example: lockstep bench collectives --op all_reduce --ranks 2 --min 4 --max 64M\n"
      "         lockstep bench collectives --op all_gather --show ring --ranks 4\n"
      "         mpirun -n 2 lockstep bench collectives --op all -b 1K -e 1M -d double -n 100");
  const auto options = std::make_shared<BenchOptions>();
  add_options(*command, options);
  command->callback([&chosen, options] { chosen = [options] { return bench(*options); }; });
}

}  // namespace lockstep::cli
