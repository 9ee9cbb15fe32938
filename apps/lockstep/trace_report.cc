#include "trace_report.h"

#include <algorithm>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/simulate/analysis.h"
#include "lockstep/simulate/draw.h"
#include "lockstep/trace/chrome.h"

namespace lockstep::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr int kColumns = 100;
constexpr size_t kWaitsShown = 5;

std::vector<trace::Event> read_events(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw InvalidArgument(Problem{"trace", path, "cannot be read", ""}.message());
  try {
    return trace::read_chrome(in);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(text(path, ": ", error.what()));
  }
}

bool is_share(const trace::Term& term) {
  return term.name == "bubble";
}

std::string words(const trace::Event& event) {
  std::string result(event.name());
  if (event.microbatch >= 0) result += text(" of micro-batch ", event.microbatch, " on stage ", event.stage);
  return result;
}

// The time of a cell with which the longer of the two fits into a line: a cell is some characters wide, which draw()
// decides by the widest action.
double cell_of(const simulate::Simulation& a, const simulate::Simulation& b) {
  const double makespan = std::max(a.makespan, b.makespan);
  const std::string one_cell = simulate::draw(a, {.cell = a.makespan});
  const auto width = static_cast<double>(one_cell.find('\n') - one_cell.find('|') - 2);
  const double cells = std::max(1.0, (kColumns - 12) / std::max(1.0, width) - 1);
  return makespan / cells;
}

}  // namespace

std::string timelines(const trace::TraceComparison& comparison) {
  const simulate::Simulation predicted = simulate::of_recorded(comparison.predicted);
  const simulate::Simulation measured = simulate::of_recorded(comparison.measured);
  const double cell = cell_of(predicted, measured);
  return text("simulated, ", predicted.makespan * 1e3, " ms\n", simulate::draw(predicted, {.cell = cell}), "recorded, ",
              measured.makespan * 1e3, " ms\n", simulate::draw(measured, {.cell = cell}), "a cell is ", cell * 1e3,
              " ms\n");
}

std::string table(const trace::TraceComparison& comparison) {
  std::string result;
  char line[160];
  std::snprintf(line, sizeof line, "%-16s %12s %12s %8s\n", "", "predicted", "measured", "error");
  result += line;
  for (const trace::Term& term : comparison.terms) {
    const double scale = is_share(term) ? 100 : 1e3;
    std::snprintf(line, sizeof line, "%-16s %9.3f %-2s %9.3f %-2s %+7.1f%%\n", term.name.c_str(),
                  term.predicted * scale, is_share(term) ? "%" : "ms", term.measured * scale,
                  is_share(term) ? "%" : "ms", term.error() * 100);
    result += line;
  }
  for (size_t i = 0; i < std::min(kWaitsShown, comparison.waits.size()); ++i) {
    const trace::Wait& wait = comparison.waits[i];
    std::snprintf(line, sizeof line, "rank %d waited %.3f ms before %s", wait.rank, wait.seconds * 1e3,
                  words(wait.before).c_str());
    result += line;
    result += wait.waited_for < 0 ? "\n" : text(", for rank ", wait.waited_for, "\n");
  }
  return result + (comparison.difference.empty() ? "every rank did the predicted actions, in their order\n"
                                                 : comparison.difference + "\n");
}

json to_json(const trace::TraceComparison& comparison) {
  json terms = json::array(), waits = json::array();
  for (const trace::Term& term : comparison.terms) {
    terms.push_back(
        {{"name", term.name}, {"predicted", term.predicted}, {"measured", term.measured}, {"error", term.error()}});
  }
  for (const trace::Wait& wait : comparison.waits) {
    waits.push_back({{"rank", wait.rank},
                     {"seconds", wait.seconds},
                     {"before", words(wait.before)},
                     {"waited_for", wait.waited_for < 0 ? json(nullptr) : json(wait.waited_for)}});
  }
  return {{"terms", terms},
          {"waits", waits},
          {"same_actions", comparison.difference.empty()},
          {"difference", comparison.difference}};
}

trace::TraceComparison compare_files(const std::string& predicted, const std::string& recorded) {
  return trace::compare(read_events(predicted), read_events(recorded));
}

trace::TraceComparison compare_run(const std::string& run) {
  return compare_files(run + "/simulated.json", run + "/trace.json");
}

}  // namespace lockstep::cli
