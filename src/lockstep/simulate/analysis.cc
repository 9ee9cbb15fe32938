#include "lockstep/simulate/analysis.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep::simulate {

namespace {

using Kind = schedule::Action::Kind;

const Span& at(const Simulation& simulation, int index) {
  return simulation.spans[static_cast<size_t>(index)];
}

bool is_beside(const Span& span) {
  return span.action.kind == Kind::unshard || span.action.kind == Kind::reduce_gradient;
}

// Who was waited for: behind a message that takes no time, its producer.
int behind_messages(const Simulation& simulation, int index) {
  while (index >= 0 && schedule::is_communication(at(simulation, index).action.kind) &&
         at(simulation, index).duration() == 0) {
    index = at(simulation, index).cause;
  }
  return index;
}

schedule::Action::Kind kind_of(std::string_view name) {
  for (int kind = 0; kind < schedule::kKinds; ++kind) {
    if (schedule::name(static_cast<schedule::Action::Kind>(kind)) == name) {
      return static_cast<schedule::Action::Kind>(kind);
    }
  }
  throw InvalidArgument(text("\"", name, "\" is no action of a schedule"));
}

}  // namespace

Bubbles bubbles(const Simulation& simulation) {
  const double sum = std::accumulate(simulation.busy.begin(), simulation.busy.end(), 0.0);
  const double ideal = sum / simulation.ranks;
  double longest = 0, fill = 0;
  for (const auto& list : simulation.list_of_rank) {
    double first = simulation.makespan, last = 0;
    for (const int index : list) {
      const Span& span = at(simulation, index);
      if (!schedule::is_compute(span.action.kind)) continue;
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
    longest = std::max(longest, last - first);
    fill = std::max(fill, first);
  }
  if (sum <= 0) return {};
  return {.ideal = ideal,
          .of_total = 1 - sum / (simulation.ranks * simulation.makespan),
          .of_ideal = simulation.makespan / ideal - 1,
          .of_span = 1 - ideal / longest,
          .of_forward_fill = fill / (ideal + fill)};
}

std::vector<int> critical_path(const Simulation& simulation) {
  int last = -1;
  for (size_t i = 0; i < simulation.spans.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (last < 0 || at(simulation, index).end > at(simulation, last).end) last = index;
  }
  std::vector<int> path;
  for (; last >= 0; last = at(simulation, last).cause) {
    if (at(simulation, last).duration() > 0) path.push_back(last);
  }
  std::ranges::reverse(path);
  return path;
}

std::vector<Gap> gaps(const Simulation& simulation) {
  std::vector<Gap> result;
  for (int rank = 0; rank < simulation.ranks; ++rank) {
    double free = 0;
    for (const int index : simulation.list_of_rank[static_cast<size_t>(rank)]) {
      const Span& span = at(simulation, index);
      if (is_beside(span)) continue;
      if (span.begin > free) {
        result.push_back({rank, free, span.begin, index, behind_messages(simulation, span.cause)});
      }
      free = std::max(free, span.end);
    }
    if (free < simulation.makespan) result.push_back({rank, free, simulation.makespan, -1, -1});
  }
  return result;
}

int rank_waited_for(const Simulation& simulation, const Gap& gap) {
  return gap.waited_for < 0 ? -1 : at(simulation, gap.waited_for).rank;
}

std::vector<trace::Event> events(const Simulation& simulation, int64_t message_bytes) {
  std::vector<trace::Event> result;
  const auto add = [&](int index, trace::Track track, int64_t bytes) {
    const Span& span = at(simulation, index);
    trace::Event& event = result.emplace_back(trace::Event{.rank = span.rank,
                                                           .track = track,
                                                           .start_s = span.begin,
                                                           .duration_s = span.duration(),
                                                           .bytes = bytes,
                                                           .stage = span.action.stage,
                                                           .microbatch = span.action.microbatch});
    event.set_name(schedule::name(span.action.kind));
  };
  for (const auto& list : simulation.list_of_rank) {
    for (const int index : list) {
      const bool beside = is_beside(at(simulation, index));
      add(index, beside ? trace::Track::communication : trace::Track::compute, 0);
    }
  }
  for (const int index : simulation.messages) add(index, trace::Track::communication, message_bytes);
  return result;
}

Simulation of_recorded(const trace::StepEvents& step) {
  Simulation result{.ranks = static_cast<int>(step.by_rank.size()), .makespan = step.makespan_s()};
  for (size_t rank = 0; rank < step.by_rank.size(); ++rank) {
    result.list_of_rank.emplace_back();
    result.busy.push_back(0);
    for (const trace::Event& event : step.by_rank[rank]) {
      const double begin = event.start_s - step.begin_s();
      result.list_of_rank.back().push_back(static_cast<int>(result.spans.size()));
      result.spans.push_back({.action = {kind_of(event.name()), event.stage, event.microbatch},
                              .rank = static_cast<int>(rank),
                              .begin = begin,
                              .end = begin + event.duration_s});
      result.busy.back() += event.duration_s;
    }
  }
  return result;
}

}  // namespace lockstep::simulate
