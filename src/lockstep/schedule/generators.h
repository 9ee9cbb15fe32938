// Schedules by name. A new one is a file in kinds/ and a line in the list of generators.cc; then it validates,
// simulates, draws and runs.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

// In which order GPipe and looped breadth-first go through the micro-batches' backwards: from the last to the first (as
// the papers draw it; the activations made last are used first), or from the first as PyTorch's GPipe does.
enum class BackwardOrder { falling, rising };

// What a table is asked for.
struct Shape {
  int ranks = 1;  // pipeline ranks, K
  int microbatches = 1;
  int chunks = 1;  // stages per rank, v
  BackwardOrder backward_order = BackwardOrder::falling;
};

struct Generator {
  std::string_view name;     // "1f1b"
  std::string_view summary;  // a line for people
  Placement placement;
  int usual_chunks;                   // for a user who does not say
  Table (*make)(const Shape& shape);  // computing alone; only for a shape that `check` has no problem with
  std::vector<Problem> (*check)(const Shape& shape);  // why `make` cannot serve this shape; empty: it can
  // The most that is alive on a rank at a time, in micro-batches of the whole rank (a chunk's counts 1/v).
  double (*in_flight_bound)(const Shape& shape, int rank);
};

std::span<const Generator> generators();
const Generator& find_generator(std::string_view name);  // throws InvalidArgument with the names there are

// Checks, makes. Throws InvalidArgument with the first rule that the shape breaks.
Table make_table(std::string_view kind, const Shape& shape);

// A training step of one pipeline rank: each micro-batch forward and backward in turn, then the reduction and the step.
// shape.ranks must be 1.
Table accumulation(const Shape& shape);

}  // namespace lockstep::schedule
