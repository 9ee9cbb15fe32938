#include "schedule_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <numeric>

#include "lockstep/base/units.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/simulate/analysis.h"

namespace lockstep::cli {
namespace {

using json = nlohmann::ordered_json;
using schedule::Action;

constexpr int kColumns = 100;
constexpr size_t kMostDrawnLines = 400;

const simulate::Span& span_at(const ScheduleReport& report, int index) {
  return report.simulation.spans[static_cast<size_t>(index)];
}

std::vector<std::string> words(const ScheduleReport& report, const std::vector<int>& spans) {
  std::vector<std::string> result;
  for (const int index : spans) result.push_back(to_string(span_at(report, index).action));
  return result;
}

// What is whole in memory at most: with recomputation that begins with the second forward.
std::vector<double> activations_peak(const ScheduleReport& report) {
  return schedule::in_flight_peak(report.table, {.from = schedule::Lifetime::From::recompute});
}

std::vector<int64_t> bytes_peak(const ScheduleReport& report) {
  std::vector<int64_t> result;
  for (const double peak : activations_peak(report)) {
    result.push_back(std::llround(peak * static_cast<double>(report.activation_bytes)));
  }
  return result;
}

// Printed as percent; what rounding left below zero is zero.
double percent(double share) {
  return std::max(0.0, share * 100);
}

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

void print_problems(const ScheduleReport& report) {
  std::cout << report.title << ": not valid\n";
  for (const Problem& problem : report.problems) std::cout << "  " << problem.message() << "\n";
}

void print_drawing(const ScheduleReport& report, double cell) {
  const std::string drawing = simulate::draw(report.simulation, {.cell = cell, .columns = kColumns});
  const auto lines = static_cast<size_t>(std::ranges::count(drawing, '\n'));
  if (cell == 0) cell = simulate::natural_cell(report.simulation);
  if (lines > kMostDrawnLines) {
    std::cout << "  the timeline would be " << lines
              << " lines; --cell T draws it coarser, --svg FILE as a picture\n\n";
  } else {
    std::cout << drawing << "a cell is " << number(cell) << "\n\n";
  }
}

void print_bubbles(const ScheduleReport& report) {
  const simulate::Bubbles bubbles = simulate::bubbles(report.simulation);
  std::printf("makespan          %-10s\n", number(report.simulation.makespan).c_str());
  std::printf("ideal             %-10s sum(busy) / K\n", number(bubbles.ideal).c_str());
  std::printf("bubble_of_total   %6.2f %%   1 - sum(busy) / (K makespan)\n", percent(bubbles.of_total));
  std::printf("bubble_of_ideal   %6.2f %%   makespan / ideal - 1\n", percent(bubbles.of_ideal));
  std::printf("bubble_of_span    %6.2f %%   1 - ideal / (longest time from a rank's first begin to its last end)\n",
              percent(bubbles.of_span));
  std::printf("forward fill      %6.2f %%   fill / (ideal + fill), fill = until the last rank begins\n\n",
              percent(bubbles.of_forward_fill));
}

// "1B0 on rank 1, 6": what the rank waited longest for in one piece.
std::string longest_gap(const ScheduleReport& report, const std::vector<simulate::Gap>& gaps, int rank) {
  const simulate::Gap* longest = nullptr;
  for (const simulate::Gap& gap : gaps) {
    if (gap.rank != rank || gap.waited_for < 0) continue;
    if (longest == nullptr || gap.duration() > longest->duration()) longest = &gap;
  }
  if (longest == nullptr) return "";
  return text(to_string(span_at(report, longest->waited_for).action), " on rank ",
              simulate::rank_waited_for(report.simulation, *longest), " (", number(longest->duration()), ")");
}

void print_ranks(const ScheduleReport& report) {
  const auto peaks = schedule::in_flight_peak(report.table);
  const auto bytes = bytes_peak(report);
  const auto gaps = simulate::gaps(report.simulation);
  std::printf("%4s %10s %10s %10s %12s  %s\n", "rank", "busy", "idle", "in flight",
              report.activation_bytes > 0 ? "activations" : "", "longest wait for");
  for (int rank = 0; rank < report.table.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const double busy = report.simulation.busy[r];
    std::printf("%4d %10s %10s %10s %12s  %s\n", rank, number(busy).c_str(),
                number(report.simulation.makespan - busy).c_str(), number(peaks[r]).c_str(),
                report.activation_bytes > 0 ? format_size(bytes[r]).c_str() : "",
                longest_gap(report, gaps, rank).c_str());
  }
  std::cout << "\n";
}

void print_critical_path(const ScheduleReport& report) {
  std::string line = "critical path ";
  for (const std::string& word : words(report, simulate::critical_path(report.simulation))) {
    if (line.size() + 1 + word.size() > kColumns) {
      std::cout << line << "\n";
      line = std::string(14, ' ');
    }
    line += " " + word;
  }
  std::cout << line << "\n";
}

json gaps_to_json(const ScheduleReport& report) {
  json result = json::array();
  for (const simulate::Gap& gap : simulate::gaps(report.simulation)) {
    json one{{"rank", gap.rank}, {"begin", gap.begin}, {"end", gap.end}};
    if (gap.waited_for >= 0) {
      one["waited_for"] = to_string(span_at(report, gap.waited_for).action);
      one["on_rank"] = simulate::rank_waited_for(report.simulation, gap);
    }
    result.push_back(one);
  }
  return result;
}

bool is_made(const ScheduleReport& report) {
  return !report.table.actions_by_rank.empty();
}

}  // namespace

json to_json(const ScheduleReport& report) {
  const bool made = is_made(report);
  const int ranks = made ? report.table.ranks : report.shape.ranks;
  json document{{"schedule", report.title},
                {"stages", ranks},
                {"microbatches", made ? report.table.microbatches : report.shape.microbatches},
                {"chunks", made ? report.table.stages() / std::max(1, ranks) : report.shape.chunks},
                {"transfer_mode", name(report.mode)},
                {"valid", report.problems.empty()},
                {"problems", json::array()}};
  for (const Problem& problem : report.problems) document["problems"].push_back(problem.message());
  if (!report.problems.empty()) return document;
  const simulate::Bubbles bubbles = simulate::bubbles(report.simulation);
  document.update({{"makespan", report.simulation.makespan},
                   {"ideal", bubbles.ideal},
                   {"bubble_of_total", bubbles.of_total},
                   {"bubble_of_ideal", bubbles.of_ideal},
                   {"bubble_of_span", bubbles.of_span},
                   {"bubble_of_forward_fill", bubbles.of_forward_fill},
                   {"busy", report.simulation.busy},
                   {"in_flight_peak", schedule::in_flight_peak(report.table)},
                   {"critical_path", words(report, simulate::critical_path(report.simulation))},
                   {"gaps", gaps_to_json(report)}});
  if (report.activation_bytes > 0) document["activation_peak_bytes"] = bytes_peak(report);
  return document;
}

void print(const ScheduleReport& report, double cell) {
  if (!report.problems.empty()) return print_problems(report);
  const schedule::Table& table = report.table;
  std::cout << report.title << ": " << table.ranks << " ranks, " << table.microbatches << " micro-batches, "
            << static_cast<double>(table.stages()) / table.ranks << " stages per rank; transfers " << name(report.mode)
            << "\n\n";
  print_drawing(report, cell);
  print_bubbles(report);
  print_ranks(report);
  print_critical_path(report);
}

void print_table(const std::vector<ScheduleReport>& reports) {
  std::printf("%-15s %6s %4s %10s %10s %10s %10s %10s\n", "schedule", "microb", "v", "makespan", "of_total", "of_ideal",
              "of_span", "in flight");
  for (const ScheduleReport& report : reports) {
    std::printf("%-15s %6d %4d ", report.title.c_str(), report.shape.microbatches, report.shape.chunks);
    if (!report.problems.empty()) {
      std::printf("%s\n", report.problems.front().message().c_str());
      continue;
    }
    const simulate::Bubbles bubbles = simulate::bubbles(report.simulation);
    std::printf("%10s %8.2f %% %8.2f %% %8.2f %% %10s\n", number(report.simulation.makespan).c_str(),
                percent(bubbles.of_total), percent(bubbles.of_ideal), percent(bubbles.of_span),
                number(std::ranges::max(schedule::in_flight_peak(report.table))).c_str());
  }
}

}  // namespace lockstep::cli
