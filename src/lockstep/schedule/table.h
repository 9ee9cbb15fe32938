// A schedule as data: for each pipeline rank the list of its actions, in order. Training interprets the list; so can a
// simulator. Gradient accumulation is the schedule of one stage:
//
//   rank 0:  0F0 0B0 0F1 0B1 0REDUCE_GRAD STEP          two micro-batches on stage 0
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::schedule {

struct Action {
  enum class Kind : uint8_t {
    forward,
    recompute,
    backward,  // input_grad and weight_grad in one
    input_grad,
    weight_grad,
    send_activation,
    receive_activation,
    send_gradient,
    receive_gradient,
    unshard,
    reshard,
    reduce_gradient,  // the stage's gradients are complete and reduced over the ranks that hold the same parameters
    optimizer_step
  };
  Kind kind = Kind::forward;
  int stage = -1;       // -1: none (optimizer_step, which is the whole rank's)
  int microbatch = -1;  // -1: none (unshard, reshard, reduce_gradient, optimizer_step)
  auto operator<=>(const Action&) const = default;
};

std::string_view name(Action::Kind kind);     // "reduce_gradient"
std::string to_string(const Action& action);  // "0F1", "0REDUCE_GRAD", "STEP": PyTorch's letters where it has them

struct Table {
  int ranks = 1;  // pipeline ranks
  int microbatches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> actions_by_rank;
};

// One line per rank, actions separated by commas.
std::string to_string(const Table& table);

// What a table is asked for.
struct Shape {
  int ranks = 1;
  int microbatches = 1;
};

struct Generator {
  std::string_view name;
  Table (*make)(const Shape& shape);
  std::vector<Problem> (*check)(const Shape& shape);  // why `make` cannot serve this shape; empty: it can
};

// A new schedule is one file and one line in the list behind this.
std::span<const Generator> generators();

// Each micro-batch forward and backward in turn, then one reduction and one step.
Table accumulation(const Shape& shape);

// Every rule that the table breaks; each problem's field is the rank, its value the action, and its rule names the
// other action concerned. Tables of several stages, and the actions that only these or sharding need, are not supported
// yet and are problems.
std::vector<Problem> validate(const Table& table);

}  // namespace lockstep::schedule
