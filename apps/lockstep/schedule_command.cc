// lockstep schedule: makes or reads an action table, checks it, simulates it and says where the time goes.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "command.h"
#include "lockstep/base/units.h"
#include "lockstep/schedule/clock_cycles.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/passes.h"
#include "schedule_report.h"

namespace lockstep::cli {
namespace {

using json = nlohmann::ordered_json;
using schedule::Table;

struct ScheduleOptions {
  std::string kinds, from, placement, microbatches, chunks, backward_order, transfer_mode = "async", activation_bytes;
  std::string forward, backward, input_grad, weight_grad, recompute;
  std::string export_file, svg_file;
  int stages = 0;
  bool stages_given = false, waves = false, blocking = false, json = false;
  double transfer = 0, cell = 0;
};

template <class Number>
std::vector<Number> numbers(const std::string& field, const std::string& list) {
  std::vector<Number> result;
  for (const std::string& item : split_list(list)) {
    std::istringstream stream(item);
    Number number{};
    if (!(stream >> number) || !stream.eof()) refuse(field, item, "must be a number, or several separated by commas");
    result.push_back(number);
  }
  if (result.empty()) refuse(field, list, "must be a number, or several separated by commas");
  return result;
}

// Times per action of one chunk: those given, else 1/v forward and 2/v backward, whose halves are half of it each.
simulate::StageTimes times_of(const ScheduleOptions& options, const Table& table) {
  const double chunks = static_cast<double>(table.stages()) / table.ranks;
  const auto given = [](const char* field, const std::string& list, std::vector<double> otherwise) {
    return list.empty() ? otherwise : numbers<double>(field, list);
  };
  simulate::StageTimes times;
  times.forward = given("--forward", options.forward, {1 / chunks});
  times.backward = given("--backward", options.backward, {2 / chunks});
  std::vector<double> half = times.backward;
  for (double& time : half) time /= 2;
  times.input_grad = given("--input-grad", options.input_grad, half);
  times.weight_grad = given("--weight-grad", options.weight_grad, half);
  times.recompute = given("--recompute", options.recompute, times.forward);
  return times;
}

simulate::TransferMode mode_of(const ScheduleOptions& options) {
  using enum simulate::TransferMode;
  for (const simulate::TransferMode mode : {async, link, block}) {
    if (options.transfer_mode == name(mode)) return mode;
  }
  refuse("--transfer-mode", options.transfer_mode, "must be async, link or block", "async");
}

bool recomputes(const Table& table) {
  return std::ranges::any_of(table.actions_by_rank, [](const auto& actions) {
    return std::ranges::count(actions, schedule::Action::Kind::recompute, &schedule::Action::kind) > 0;
  });
}

// The layers that the options ask for, on a table that is valid. Then the simulation.
void simulate_into(ScheduleReport& report, const ScheduleOptions& options) {
  report.problems = schedule::validate(report.table, report.rules);
  if (!report.problems.empty()) return;
  report.mode = mode_of(options);
  const auto duration = simulate::per_stage(times_of(options, report.table), report.table.stages());
  const bool has_communication = schedule::has_communication(report.table);
  if (!options.recompute.empty() && !recomputes(report.table)) {
    if (has_communication)
      refuse("--recompute", options.recompute, "can be added only to a table without sends and receives");
    report.table = schedule::add_recompute(report.table);
  }
  if (options.blocking || report.mode == simulate::TransferMode::block) {
    if (!has_communication) report.table = schedule::add_communication(report.table);
    report.rules.sends = schedule::Sends::blocking;
    report.problems = schedule::validate(report.table, report.rules);
    if (!report.problems.empty()) return;
  }
  report.simulation = simulate::simulate(report.table, {duration, options.transfer, report.mode});
}

Table read_table(const ScheduleOptions& options) {
  std::ifstream file(options.from);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) refuse("--from", options.from, "cannot be read; name a CSV file with a line per rank, such as 0F0,0B0");
  try {
    return schedule::parse_table(content.str());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(text(options.from, ": ", error.what()));
  }
}

// Stages have to be where --placement puts them.
std::vector<Problem> check_placement(const Table& table, const std::string& placement) {
  if (placement.empty()) return {};
  if (placement != "loop" && placement != "v") refuse("--placement", placement, "must be loop or v", "loop");
  const auto wanted =
      schedule::place_stages(placement == "v" ? schedule::Placement::v : schedule::Placement::loop, table.ranks,
                             std::max(1, (table.stages() + table.ranks - 1) / table.ranks));
  for (int stage = 0; stage < table.stages(); ++stage) {
    const int rank = table.rank_of_stage[static_cast<size_t>(stage)], right = wanted[static_cast<size_t>(stage)];
    if (rank != right)
      return {{text("stage ", stage), text("rank ", rank), "placement " + placement + " puts it elsewhere",
               text("rank ", right)}};
  }
  return {};
}

ScheduleReport report_of_file(const ScheduleOptions& options) {
  ScheduleReport report{.title = options.from, .table = read_table(options)};
  report.problems = check_placement(report.table, options.placement);
  if (report.problems.empty()) simulate_into(report, options);
  return report;
}

ScheduleReport report_of_kind(const ScheduleOptions& options, const std::string& kind, schedule::Shape shape) {
  constexpr int64_t kMost = 1 << 20;
  const schedule::Generator& generator = schedule::find_generator(kind);
  if (options.chunks.empty()) shape.chunks = generator.usual_chunks;
  ScheduleReport report{.title = kind, .shape = shape};
  report.problems = generator.check(shape);
  if (!report.problems.empty()) return report;
  if (int64_t{shape.ranks} * shape.chunks * shape.microbatches > kMost) {
    refuse("--microbatches", text(shape.microbatches), text("stages x chunks x micro-batches must be at most ", kMost),
           text(std::max<int64_t>(1, kMost / shape.ranks / shape.chunks)));
  }
  report.table = generator.make(shape);
  for (int rank = 0; rank < shape.ranks; ++rank)
    report.rules.in_flight_bound.push_back(generator.in_flight_bound(shape, rank));
  simulate_into(report, options);
  return report;
}

schedule::BackwardOrder order_of(const ScheduleOptions& options) {
  if (options.backward_order.empty() || options.backward_order == "falling") return schedule::BackwardOrder::falling;
  if (options.backward_order == "rising") return schedule::BackwardOrder::rising;
  refuse("--backward-order", options.backward_order, "must be falling or rising", "falling");
}

std::vector<ScheduleReport> report_of_kinds(const ScheduleOptions& options) {
  std::vector<ScheduleReport> reports;
  for (const std::string& kind : split_list(options.kinds)) {
    for (const int microbatches : numbers<int>("--microbatches", options.microbatches)) {
      for (const int chunks : numbers<int>("--chunks", options.chunks.empty() ? "1" : options.chunks)) {
        reports.push_back(report_of_kind(options, kind, {options.stages, microbatches, chunks, order_of(options)}));
      }
    }
  }
  if (reports.empty()) refuse("--kind", options.kinds, "must name at least one schedule", "1f1b");
  return reports;
}

// Combinations of which a part would be ignored.
void check_combination(const ScheduleOptions& options) {
  const bool from_file = !options.from.empty(), from_kind = !options.kinds.empty();
  const bool counts_given = options.stages_given || !options.microbatches.empty();
  if (from_file == from_kind && !(options.waves && !from_file)) {
    throw InvalidArgument("schedule needs either --kind NAME with --stages K and --microbatches M, or --from FILE.csv");
  }
  if (from_file && (counts_given || !options.chunks.empty() || !options.backward_order.empty())) {
    throw InvalidArgument("--stages, --microbatches, --chunks and --backward-order come from the file with --from");
  }
  if (!from_file && !options.placement.empty())
    throw InvalidArgument("--placement is what the file of --from is held to");
  if (!from_file && !(options.stages_given && !options.microbatches.empty())) {
    throw InvalidArgument("--stages and --microbatches are required without --from");
  }
  if (!(options.transfer >= 0) || options.transfer > 1e300)
    refuse("--transfer", text(options.transfer), "must be a time, at least 0", "0");
}

void write_file(const std::string& name, const std::string& content) {
  std::ofstream file(name);
  file << content;
  file.close();
  if (!file) refuse("file", name, "cannot be written; check the folder and the space left");
}

json waves(int microbatches, int stages) {
  json result = json::array();
  for (const schedule::Wave& wave : schedule::clock_cycles(microbatches, stages)) {
    json cells = json::array();
    for (const schedule::Cell& cell : wave) cells.push_back({cell.microbatch, cell.stage});
    result.push_back(cells);
  }
  return result;
}

void print_waves(const json& waves, int microbatches, int stages) {
  std::cout << "clock_cycles(" << microbatches << ", " << stages << "), pairs of (micro-batch, stage):\n";
  for (size_t k = 0; k < waves.size(); ++k) {
    std::vector<std::string> cells;
    for (const json& cell : waves[k]) cells.push_back(text("(", cell[0], ", ", cell[1], ")"));
    std::cout << "  k = " << k << ": [" << join(cells) << "]\n";
  }
}

// The waves of the counts given, or of the file's.
json show_waves(const ScheduleOptions& options, const std::vector<ScheduleReport>& reports) {
  const bool from_file = !options.from.empty();
  const auto counts = from_file ? std::vector{reports.front().table.microbatches}
                                : numbers<int>("--microbatches", options.microbatches);
  if (counts.size() != 1)
    refuse("--microbatches", options.microbatches, "must be one number with --waves", text(counts.front()));
  const int stages = from_file ? reports.front().table.stages() : options.stages;
  json result = waves(counts.front(), stages);
  if (!options.json) print_waves(result, counts.front(), stages);
  return result;
}

int run(const ScheduleOptions& options) {
  check_combination(options);
  std::vector<ScheduleReport> reports;
  if (!options.from.empty()) reports.push_back(report_of_file(options));
  if (!options.kinds.empty()) reports = report_of_kinds(options);
  const bool several = reports.size() > 1;
  if (several && (!options.export_file.empty() || !options.svg_file.empty() || options.cell != 0)) {
    throw InvalidArgument(
        "--export, --svg and --cell are of one schedule; give one kind, one --microbatches and one --chunks");
  }
  // One that its kind cannot make is a wrong argument; among several it is a row that says so.
  if (reports.size() == 1 && !options.kinds.empty() && reports.front().table.actions_by_rank.empty()) {
    throw InvalidArgument(text(reports.front().title, ": ", reports.front().problems.front().message()));
  }
  const int64_t activation_bytes =
      options.activation_bytes.empty() ? 0 : parse_size(options.activation_bytes, "--activation-bytes");
  json document = json::object();
  if (options.waves) document["waves"] = show_waves(options, reports);
  bool all_valid = true;
  for (ScheduleReport& report : reports) {
    report.activation_bytes = activation_bytes;
    all_valid = all_valid && report.problems.empty();
  }
  if (several) {
    document["schedules"] = json::array();
    for (const ScheduleReport& report : reports) document["schedules"].push_back(to_json(report));
  } else if (!reports.empty()) {
    document.update(to_json(reports.front()));
  }
  if (!reports.empty() && all_valid && !several) {
    if (!options.export_file.empty()) write_file(options.export_file, to_string(reports.front().table));
    if (!options.svg_file.empty()) write_file(options.svg_file, simulate::draw_svg(reports.front().simulation));
  }
  if (options.json) {
    std::cout << document.dump(1) << "\n";
  } else if (several) {
    print_table(reports);
  } else if (!reports.empty()) {
    print(reports.front(), options.cell);
  }
  return all_valid ? 0 : 1;
}

}  // namespace

void add_schedule(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("schedule", "draws, checks and simulates a pipeline schedule");
  std::string kinds = "Kinds:\n";
  for (const schedule::Generator& generator : schedule::generators()) {
    std::string name(generator.name);
    name.resize(16, ' ');
    kinds += text("  ", name, generator.summary, "\n");
  }
  command->footer(kinds + "\nExample: lockstep schedule --kind 1f1b --stages 4 --microbatches 8 --transfer 0.2");
  const auto o = std::make_shared<ScheduleOptions>();
  command->add_option("--kind", o->kinds, "one of those below, or several with commas");
  command->add_option("--stages", o->stages, "pipeline ranks")->each([o](const std::string&) {
    o->stages_given = true;
  });
  command->add_option("--microbatches", o->microbatches, "one or more numbers, with commas");
  command->add_option("--chunks", o->chunks,
                      "stages per rank, one or more numbers with commas (default: 1, 2 for V kinds)");
  command->add_option("--from", o->from, "reads a table instead: a line per rank, PyTorch's format");
  command->add_option("--placement", o->placement, "loop or v: where the file's stages have to be");
  command->add_option("--forward", o->forward,
                      "time of one chunk's forward, or one per stage with commas (default: 1 / chunks)");
  command->add_option("--backward", o->backward, "whole backward (default: 2 / chunks)");
  command->add_option("--input-grad", o->input_grad, "first half of a split backward (default: half of backward)");
  command->add_option("--weight-grad", o->weight_grad, "second half (default: half of backward)");
  command->add_option("--recompute", o->recompute, "runs forwards again before their backwards, taking this time");
  command->add_option("--transfer", o->transfer, "time of a message between ranks")->capture_default_str();
  command
      ->add_option(
          "--transfer-mode", o->transfer_mode,
          "async (a delay), link (one message at a time per pair of ranks and direction) or block (both ranks wait)")
      ->capture_default_str();
  command->add_option("--backward-order", o->backward_order,
                      "falling or rising, for gpipe and looped_bfs (default: falling)");
  command->add_option("--activation-bytes", o->activation_bytes, "of one micro-batch on a rank, such as 512M");
  command->add_flag("--blocking", o->blocking, "checks that sends that wait for their receives do not deadlock");
  command->add_flag("--waves", o->waves, "prints clock_cycles(microbatches, stages)");
  command->add_option("--cell", o->cell, "time of one cell of the timeline (default: the shortest action)")
      ->check(within("--cell", 1e-9, 1e300));
  command->add_option("--export", o->export_file, "writes the table, a line per rank, in PyTorch's format");
  command->add_option("--svg", o->svg_file, "writes the timeline as a picture");
  command->add_flag("--json", o->json, "print one JSON document");
  command->callback([&chosen, o] { chosen = [o] { return run(*o); }; });
}

}  // namespace lockstep::cli
