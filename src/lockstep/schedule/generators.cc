// The list of schedules, the shapes each can serve, and what each holds in memory.
#include "lockstep/schedule/generators.h"

#include <algorithm>
#include <array>

#include "lockstep/schedule/kinds/kinds.h"
#include "lockstep/schedule/passes.h"

namespace lockstep::schedule {

namespace {

using Problems = std::vector<Problem>;

Problems check_counts(const Shape& shape) {
  Problems problems;
  const auto at_least_one = [&](const char* field, int value) {
    if (value < 1) problems.push_back({field, text(value), "must be at least 1", "1"});
  };
  at_least_one("ranks", shape.ranks);
  at_least_one("microbatches", shape.microbatches);
  at_least_one("chunks", shape.chunks);
  return problems;
}

Problems check_chunks(const Shape& shape, int chunks, const char* other) {
  Problems problems = check_counts(shape);
  if (problems.empty() && shape.chunks != chunks) {
    problems.push_back(
        {"chunks", text(shape.chunks), text("this schedule has ", chunks, " per rank", other), text(chunks)});
  }
  return problems;
}

void refuse_rising(const Shape& shape, Problems& problems) {
  if (shape.backward_order == BackwardOrder::falling) return;
  problems.push_back({"backward_order", "rising",
                      "only gpipe and looped_bfs have a choice; others start backwards with "
                      "the first micro-batch",
                      "falling"});
}

Problems check_gpipe(const Shape& shape) {
  return check_chunks(shape, 1, "; looped_bfs is the same with more");
}

Problems check_single(const Shape& shape) {
  Problems problems = check_chunks(shape, 1, "; interleaved and interleaved_zb take more");
  refuse_rising(shape, problems);
  return problems;
}

Problems check_interleaved(const Shape& shape) {
  Problems problems = check_counts(shape);
  refuse_rising(shape, problems);
  const int ranks = shape.ranks, microbatches = shape.microbatches;
  if (problems.empty() && shape.chunks > 1 && microbatches % ranks != 0) {
    const int below = microbatches / ranks * ranks;
    problems.push_back(
        {"microbatches", text(microbatches),
         text("micro-batches visit the chunks in groups of the ranks: must be a multiple of ranks = ", ranks),
         below > 0 ? text(below, " or ", below + ranks) : text(ranks)});
  }
  return problems;
}

Problems check_zero_bubble_v(const Shape& shape) {
  Problems problems = check_chunks(shape, 2, ", placed as a V");
  refuse_rising(shape, problems);
  return problems;
}

Problems check_dualpipe_v(const Shape& shape) {
  Problems problems = check_zero_bubble_v(shape);
  if (problems.empty() && shape.microbatches < 2 * shape.ranks) {
    problems.push_back({"microbatches", text(shape.microbatches),
                        text("must be at least the number of stages, two for each of ranks = ", shape.ranks),
                        text(2 * shape.ranks)});
  }
  return problems;
}

double bound_naive(const Shape&, int) {
  return 1;
}

double bound_all(const Shape& shape, int) {
  return shape.microbatches;
}

double bound_1f1b(const Shape& shape, int rank) {
  return std::min(shape.microbatches, shape.ranks - rank);
}

double bound_interleaved(const Shape& shape, int rank) {
  if (shape.chunks == 1) return bound_1f1b(shape, rank);
  return std::min<double>(shape.microbatches, (interleaved_warm_up(shape, rank) + 1.0) / shape.chunks);
}

double bound_ranks(const Shape& shape, int) {
  return std::min(shape.microbatches, shape.ranks);
}

double bound_h2(const Shape& shape, int) {
  return std::min(shape.microbatches, 2 * shape.ranks - 1);
}

double bound_dualpipe_v(const Shape& shape, int) {
  return shape.ranks + 0.5;
}

constexpr Placement kLoop = Placement::loop, kV = Placement::v;

constexpr auto kGenerators = std::to_array<Generator>({
    {"naive", "one micro-batch at a time through all stages", kLoop, 1, naive, check_single, bound_naive},
    {"gpipe", "all forwards, then all backwards", kLoop, 1, gpipe, check_gpipe, bound_all},
    {"1f1b", "forward and backward in turn after a warm-up", kLoop, 1, one_forward_one_backward, check_single,
     bound_1f1b},
    {"interleaved", "1f1b with several chunks per rank", kLoop, 1, interleaved, check_interleaved, bound_interleaved},
    {"looped_bfs", "gpipe with several chunks per rank", kLoop, 1, looped_breadth_first, check_counts, bound_all},
    {"zb_h1", "weight gradients fill bubbles; memory of 1f1b", kLoop, 1, zero_bubble_h1, check_single, bound_ranks},
    {"zb_h2", "no bubble within a rank's span; twice the memory", kLoop, 1, zero_bubble_h2, check_single, bound_h2},
    {"interleaved_zb", "zb_h1 with several chunks per rank", kLoop, 1, interleaved_zero_bubble, check_interleaved,
     bound_ranks},
    {"zb_v", "weight gradients fill bubbles; two chunks as a V", kV, 2, zero_bubble_v, check_zero_bubble_v,
     bound_ranks},
    {"dualpipe_v", "forwards paired with backwards; two chunks as a V", kV, 2, dualpipe_v, check_dualpipe_v,
     bound_dualpipe_v},
});

}  // namespace

std::span<const Generator> generators() {
  return kGenerators;
}

const Generator& find_generator(std::string_view name) {
  const auto found = std::ranges::find(kGenerators, name, &Generator::name);
  if (found != kGenerators.end()) return *found;
  std::vector<std::string> names;
  for (const Generator& generator : kGenerators) names.emplace_back(generator.name);
  throw InvalidArgument(
      Problem{"kind", std::string(name), "must be one of " + join(names), nearest_name(name, names)}.message());
}

Table make_table(std::string_view kind, const Shape& shape) {
  const Generator& generator = find_generator(kind);
  const Problems problems = generator.check(shape);
  if (!problems.empty()) throw InvalidArgument(text(kind, ": ", problems.front().message()));
  return generator.make(shape);
}

Table accumulation(const Shape& shape) {
  LOCKSTEP_CHECK(shape.ranks == 1, "accumulation is the schedule of one pipeline rank");
  return add_step(naive(shape));
}

}  // namespace lockstep::schedule
