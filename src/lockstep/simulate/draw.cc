#include "lockstep/simulate/draw.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "lockstep/base/error.h"

namespace lockstep::simulate {

namespace {

using Kind = schedule::Action::Kind;

constexpr double kMostCells = 100'000;
constexpr std::string_view kIdle = "·";

const Span& at(const Simulation& simulation, int index) {
  return simulation.spans[static_cast<size_t>(index)];
}

// The spans of a rank in which it computes.
std::vector<Span> computing(const Simulation& simulation, int rank) {
  std::vector<Span> spans;
  for (const int index : simulation.list_of_rank[static_cast<size_t>(rank)]) {
    const Span& span = at(simulation, index);
    if (schedule::is_compute(span.action.kind) && span.duration() > 0) spans.push_back(span);
  }
  return spans;
}

bool ranks_have_several_stages(const Simulation& simulation) {
  for (int rank = 0; rank < simulation.ranks; ++rank) {
    std::set<int> stages;
    for (const Span& span : computing(simulation, rank)) stages.insert(span.action.stage);
    if (stages.size() > 1) return true;
  }
  return false;
}

std::string words(const Span& span, bool with_stage) {
  const std::string whole = to_string(span.action);
  return with_stage ? whole : whole.substr(whole.find_first_not_of("0123456789"));
}

std::vector<std::string> cells_of_rank(const Simulation& simulation, int rank, double cell, size_t width) {
  const auto count = static_cast<size_t>(std::ceil(simulation.makespan / cell - 1e-9));
  std::string idle, padded;
  for (size_t i = 0; i < width; ++i) idle += kIdle;
  std::vector<std::string> cells(count, idle);
  const bool with_stage = ranks_have_several_stages(simulation);
  for (const Span& span : computing(simulation, rank)) {
    // Cells whose middle is in the span.
    const auto first = static_cast<size_t>(std::max(0.0, std::ceil(span.begin / cell - 0.5 - 1e-9)));
    const double last = span.end / cell - 0.5 - 1e-9;
    padded = words(span, with_stage);
    padded.resize(width, ' ');
    for (size_t i = first; i < count && static_cast<double>(i) < last; ++i) cells[i] = padded;
  }
  return cells;
}

size_t cell_width(const Simulation& simulation) {
  size_t width = 1;
  const bool with_stage = ranks_have_several_stages(simulation);
  for (int rank = 0; rank < simulation.ranks; ++rank) {
    for (const Span& span : computing(simulation, rank)) width = std::max(width, words(span, with_stage).size());
  }
  return width;
}

double checked_cell(const Simulation& simulation, double cell) {
  if (cell == 0) cell = natural_cell(simulation);
  if (!(cell > 0) || !std::isfinite(cell) || simulation.makespan / cell > kMostCells) {
    throw InvalidArgument(Problem{"cell", text(cell),
                                  text("must be a time above 0 that gives at most ", kMostCells, " cells"),
                                  text(natural_cell(simulation))}
                              .message());
  }
  return cell;
}

std::string_view colour(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return "#8fb8de";
    case Kind::recompute:
      return "#c9b6e4";
    case Kind::input_grad:
      return "#f2c879";
    case Kind::weight_grad:
      return "#9ccc9c";
    default:
      return "#e8998d";  // backward
  }
}

}  // namespace

double natural_cell(const Simulation& simulation) {
  double shortest = 0;
  for (int rank = 0; rank < simulation.ranks; ++rank) {
    for (const Span& span : computing(simulation, rank)) {
      if (shortest == 0 || span.duration() < shortest) shortest = span.duration();
    }
  }
  return shortest > 0 ? shortest : 1;
}

std::string draw(const Simulation& simulation, const DrawOptions& options) {
  const double cell = checked_cell(simulation, options.cell);
  const size_t width = cell_width(simulation);
  std::vector<std::vector<std::string>> rows;
  for (int rank = 0; rank < simulation.ranks; ++rank) rows.push_back(cells_of_rank(simulation, rank, cell, width));
  const size_t count = rows.front().size(), digits = text(simulation.ranks - 1).size();
  size_t per_line = std::max<size_t>(count, 1);
  const size_t frame = options.label.size() + digits + 3;
  if (options.columns > 0) {
    const size_t room = static_cast<size_t>(options.columns) > frame ? static_cast<size_t>(options.columns) - frame : 0;
    per_line = std::clamp<size_t>(room / width, 1, per_line);
  }
  std::string result;
  for (size_t first = 0; first < count; first += per_line) {
    if (first > 0) result += "\n";
    for (int rank = 0; rank < simulation.ranks; ++rank) {
      const std::string number = text(rank);
      result += options.label + std::string(digits - number.size(), ' ') + number + " |";
      const auto& row = rows[static_cast<size_t>(rank)];
      for (size_t i = first; i < std::min(first + per_line, count); ++i) result += row[i];
      result += "|\n";
    }
  }
  return result;
}

std::string draw_svg(const Simulation& simulation) {
  constexpr double kHeight = 28, kLeft = 64, kTop = 8;
  const double unit = std::clamp(1600 / std::max(simulation.makespan, 1e-300), 1e-12, 40 / natural_cell(simulation));
  const auto x = [&](double time) { return kLeft + time * unit; };
  const auto y = [&](int rank) { return kTop + rank * kHeight; };
  const bool with_stage = ranks_have_several_stages(simulation);
  std::string svg =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", x(simulation.makespan) + 8, "\" height=\"",
           y(simulation.ranks) + kTop, "\" font-family=\"sans-serif\" font-size=\"10\">\n");
  for (int rank = 0; rank < simulation.ranks; ++rank) {
    svg += text("<text x=\"4\" y=\"", y(rank) + 17, "\">rank ", rank, "</text>\n");
    for (const Span& span : computing(simulation, rank)) {
      svg +=
          text("<rect x=\"", x(span.begin), "\" y=\"", y(rank), "\" width=\"", span.duration() * unit, "\" height=\"",
               kHeight - 4, "\" fill=\"", colour(span.action.kind), "\" stroke=\"#444\" stroke-width=\"0.5\"><title>",
               to_string(span.action), ": ", span.begin, " to ", span.end, "</title></rect>\n");
      const std::string label = words(span, with_stage);
      if (span.duration() * unit < 6.5 * static_cast<double>(label.size())) continue;
      svg += text("<text x=\"", x((span.begin + span.end) / 2), "\" y=\"", y(rank) + 16,
                  "\" text-anchor=\"middle\" pointer-events=\"none\">", label, "</text>\n");
    }
  }
  for (const int index : simulation.messages) {
    const Span& message = at(simulation, index);
    if (message.duration() <= 0) continue;
    const double line = y(message.rank) + kHeight - 2;
    svg += text("<line x1=\"", x(message.begin), "\" y1=\"", line, "\" x2=\"", x(message.end), "\" y2=\"", line,
                "\" stroke=\"#777\"><title>", to_string(message.action), ": ", message.begin, " to ", message.end,
                "</title></line>\n");
  }
  return svg + "</svg>\n";
}

}  // namespace lockstep::simulate
