#include "lockstep/trace/compare.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "lockstep/base/error.h"

namespace lockstep::trace {

namespace {

constexpr std::string_view kLastOfStep = "optimizer_step";
constexpr std::array<std::string_view, 6> kActions = {"forward",    "recompute",   "backward",
                                                      "input_grad", "weight_grad", kLastOfStep};

double end_of(const Event& event) {
  return event.start_s + event.duration_s;
}

std::string words(const Event& event) {
  std::string result(event.name());
  if (event.stage >= 0) result += text(" of stage ", event.stage);
  if (event.microbatch >= 0) result += text(", micro-batch ", event.microbatch);
  return result;
}

bool same_action(const Event& a, const Event& b) {
  return a.name() == b.name() && a.stage == b.stage && a.microbatch == b.microbatch;
}

// What ranks computed, in order; nothing that lies within another event.
std::map<int, std::vector<Event>> computing(std::span<const Event> events) {
  std::vector<size_t> order(events.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Of two that begin together the longer is the outer one.
  std::ranges::sort(order, {}, [&](size_t i) { return std::tuple(events[i].start_s, -events[i].duration_s, i); });
  std::map<int, std::vector<Event>> by_rank;
  for (const size_t i : order) {
    const Event& event = events[i];
    const bool is_action = std::ranges::find(kActions, event.name()) != kActions.end();
    if (event.track == Track::compute && is_action) by_rank[event.rank].push_back(event);
  }
  for (auto& [rank, list] : by_rank) {
    double end_s = -std::numeric_limits<double>::infinity();
    std::erase_if(list, [&](const Event& event) {
      if (event.duration_s > 0 && end_of(event) <= end_s) return true;
      end_s = std::max(end_s, end_of(event));
      return false;
    });
  }
  return by_rank;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The mean duration of each kind.
std::map<std::string, double> durations(const StepEvents& step) {
  std::map<std::string, std::pair<double, int>> sums;
  for (const auto& list : step.by_rank) {
    for (const Event& event : list) {
      auto& [seconds, count] = sums[std::string(event.name())];
      seconds += event.duration_s;
      ++count;
    }
  }
  std::map<std::string, double> means;
  for (const auto& [kind, sum] : sums) means[kind] = sum.first / sum.second;
  return means;
}

std::string difference(const StepEvents& predicted, const StepEvents& measured, size_t step) {
  for (size_t rank = 0; rank < predicted.by_rank.size(); ++rank) {
    const auto &expected = predicted.by_rank[rank], &did = measured.by_rank[rank];
    const size_t both = std::min(expected.size(), did.size());
    for (size_t i = 0; i <= both; ++i) {
      if (i < both && same_action(expected[i], did[i])) continue;
      if (i == both && expected.size() == did.size()) break;
      return text("step ", step, " of those recorded, rank ", rank, ", action ", i, ": ",
                  i < did.size() ? words(did[i]) : "none", " where ", i < expected.size() ? words(expected[i]) : "none",
                  " was predicted");
    }
  }
  return "";
}

// Whether `event` makes what `action` needs from another stage.
bool feeds(const Event& event, const Event& action) {
  if (event.microbatch != action.microbatch) return false;
  if (action.name() == "forward") return event.name() == "forward" && event.stage == action.stage - 1;
  if (action.name() != "backward" && action.name() != "input_grad") return false;
  return (event.name() == "backward" || event.name() == "input_grad") && event.stage == action.stage + 1;
}

// The ranks that have a stage, ascending: one of each pipeline, pipelines in the same order for every stage.
std::vector<int> ranks_with(int stage, const StepEvents& step) {
  std::vector<int> ranks;
  for (const auto& list : step.by_rank) {
    if (std::ranges::find(list, stage, &Event::stage) != list.end()) ranks.push_back(list.front().rank);
  }
  return ranks;
}

// Whether the ranks of two events are of the same pipeline.
bool same_pipeline(const Event& a, const Event& b, const StepEvents& step) {
  const std::vector<int> of_a = ranks_with(a.stage, step), of_b = ranks_with(b.stage, step);
  const auto place = std::ranges::find(of_a, a.rank) - of_a.begin();
  return of_a.size() == of_b.size() && of_b[static_cast<size_t>(place)] == b.rank;
}

// The rank whose event that feeds `action` ended last before it began; of a step's end the rank that came last.
int waited_for(const StepEvents& step, const Event& action) {
  int rank = -1;
  double latest_s = -std::numeric_limits<double>::infinity();
  for (const auto& list : step.by_rank) {
    for (const Event& event : list) {
      const bool is_last = action.name() == kLastOfStep && event.name() != kLastOfStep;
      if (event.rank == action.rank || end_of(event) > action.start_s || end_of(event) <= latest_s) continue;
      if (!is_last && !(feeds(event, action) && same_pipeline(event, action, step))) continue;
      latest_s = end_of(event);
      rank = event.rank;
    }
  }
  return rank;
}

std::vector<Wait> waits_in(const StepEvents& step) {
  std::vector<Wait> waits;
  for (const auto& list : step.by_rank) {
    double end_s = step.begin_s();
    for (const Event& event : list) {
      if (event.start_s > end_s) waits.push_back({event.rank, event.start_s - end_s, event, waited_for(step, event)});
      end_s = end_of(event);
    }
  }
  std::ranges::sort(waits, std::greater(), &Wait::seconds);
  return waits;
}

}  // namespace

double StepEvents::begin_s() const {
  double begin_s = std::numeric_limits<double>::infinity();
  for (const auto& list : by_rank) begin_s = std::min(begin_s, list.front().start_s);
  return begin_s;
}

double StepEvents::makespan_s() const {
  double end_s = -std::numeric_limits<double>::infinity();
  for (const auto& list : by_rank) end_s = std::max(end_s, end_of(list.back()));
  return end_s - begin_s();
}

double StepEvents::busy_s() const {
  double busy_s = 0;
  for (const auto& list : by_rank) {
    for (const Event& event : list) busy_s += event.duration_s;
  }
  return busy_s;
}

double StepEvents::bubble_share() const {
  return 1 - busy_s() / (static_cast<double>(by_rank.size()) * makespan_s());
}

std::vector<StepEvents> steps_of(std::span<const Event> events) {
  std::vector<std::vector<std::vector<Event>>> of_rank;  // rank, step
  size_t count = std::numeric_limits<size_t>::max();
  for (const auto& [rank, list] : computing(events)) {
    auto& steps = of_rank.emplace_back(1);
    for (const Event& event : list) {
      steps.back().push_back(event);
      if (event.name() == kLastOfStep) steps.emplace_back();
    }
    steps.pop_back();  // what follows the last whole step
    count = std::min(count, steps.size());
  }
  std::vector<StepEvents> result(of_rank.empty() ? 0 : count);
  for (const auto& steps : of_rank) {
    for (size_t i = 0; i < count; ++i) result[i].by_rank.push_back(steps[steps.size() - count + i]);
  }
  return result;
}

TraceComparison compare(std::span<const Event> predicted, std::span<const Event> recorded) {
  const std::vector<StepEvents> expected = steps_of(predicted);
  std::vector<StepEvents> steps = steps_of(recorded);
  if (steps.size() > 1) steps.erase(steps.begin());  // its beginning may be forgotten
  if (expected.empty() || steps.empty()) {
    throw InvalidArgument(text(expected.empty() ? "the prediction" : "the recorded trace", " has no whole step"));
  }
  if (expected.front().by_rank.size() != steps.front().by_rank.size()) {
    throw InvalidArgument(text("the prediction is of ", expected.front().by_rank.size(),
                               " ranks, the recorded trace of ", steps.front().by_rank.size()));
  }
  TraceComparison result{.predicted = expected.front()};
  std::vector<double> makespans, bubbles;
  std::map<std::string, std::vector<double>> measured;
  for (size_t step = 0; step < steps.size(); ++step) {
    if (result.difference.empty()) result.difference = difference(expected.front(), steps[step], step);
    makespans.push_back(steps[step].makespan_s());
    bubbles.push_back(steps[step].bubble_share());
    for (const auto& [kind, seconds] : durations(steps[step])) measured[kind].push_back(seconds);
  }
  for (const auto& [kind, seconds] : durations(result.predicted)) {
    if (measured.contains(kind)) result.terms.push_back({kind, seconds, median(measured[kind])});
  }
  const double median_s = median(makespans);
  result.terms.push_back({"step", result.predicted.makespan_s(), median_s});
  result.terms.push_back({"bubble", result.predicted.bubble_share(), median(bubbles)});
  result.measured = steps[static_cast<size_t>(std::ranges::find(makespans, median_s) - makespans.begin())];
  result.waits = waits_in(result.measured);
  return result;
}

}  // namespace lockstep::trace
