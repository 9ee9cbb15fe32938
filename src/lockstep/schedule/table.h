// A schedule as data: for each pipeline rank the list of its actions, in order. It has two readers, which interpret the
// same list: simulate/ and whatever trains. Gradient accumulation is the schedule of one stage:
//
//   rank 0:  0F0 0B0 0F1 0B1 0REDUCE_GRAD STEP          two micro-batches on stage 0
//
// A list has up to four layers. Generators (generators.h) make the computing alone; passes (passes.h) add the others:
//
//   computing       F forward, B backward or its halves I (input gradient) and W (weight gradient), R recompute
//   communication   SEND_F, RECV_F, SEND_B, RECV_B between stages of different ranks
//   sharding        UNSHARD, RESHARD, REDUCE_GRAD of a stage's parameters and gradients
//   the step        STEP
//
// What an interpreter does: a rank takes its actions one after the other. SEND and RECV post; a rank waits for a
// message at the action that consumes it, and before it uses a sent buffer again. UNSHARD posts too, and the stage's
// next action waits for it. A stage's reduction begins while the last of its B or W runs, as gradients get ready;
// REDUCE_GRAD is where it must be complete. R needs only its forward, so it may run while the gradient is on its way.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace lockstep::schedule {

struct Action {
  enum class Kind : uint8_t {
    forward,
    recompute,
    backward,  // input_grad and weight_grad in one
    input_grad,
    weight_grad,
    send_activation,     // of this stage's output, to the next stage
    receive_activation,  // of this stage's input, from the stage before
    send_gradient,       // of this stage's input, to the stage before
    receive_gradient,    // of this stage's output, from the next stage
    unshard,
    reshard,
    reduce_gradient,  // the stage's gradients are complete and reduced over the ranks that hold the same parameters
    optimizer_step
  };
  Kind kind = Kind::forward;
  int stage = -1;       // -1: none (optimizer_step, which is the whole rank's)
  int microbatch = -1;  // -1: none (unshard, reshard, reduce_gradient, optimizer_step)
  // A forward that may run at the same time as the action after it, a backward (DualPipeV). One after the other is
  // right too. No part of what the action is: comparisons leave it out.
  bool overlaps_next = false;

  auto operator<=>(const Action& other) const {
    return std::tuple(kind, stage, microbatch) <=> std::tuple(other.kind, other.stage, other.microbatch);
  }
  bool operator==(const Action& other) const { return (*this <=> other) == 0; }
};
inline constexpr int kKinds = static_cast<int>(Action::Kind::optimizer_step) + 1;

std::string_view name(Action::Kind kind);     // "reduce_gradient"
std::string to_string(const Action& action);  // "0F1", "0REDUCE_GRAD", "STEP": PyTorch's letters where it has them

bool is_compute(Action::Kind kind);         // forward, recompute, backward, input_grad, weight_grad
bool is_communication(Action::Kind kind);   // the two sends and the two receives
bool is_per_microbatch(Action::Kind kind);  // those two together
// The ones that make the gradient which the stage before needs: backward, input_grad.
bool makes_input_gradient(Action::Kind kind);
// The ones with which a micro-batch's part of the stage's gradient is complete: backward, weight_grad.
bool completes_gradient(Action::Kind kind);

struct Table {
  int ranks = 1;  // pipeline ranks
  int microbatches = 1;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> actions_by_rank;

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool same_rank(int stage, int other) const {
    return rank_of_stage.at(static_cast<size_t>(stage)) == rank_of_stage.at(static_cast<size_t>(other));
  }
  bool operator==(const Table&) const = default;
};

bool has_communication(const Table& table);

// Which rank holds which stages, for v stages (chunks) per rank.
//   loop   stage = chunk * K + rank                                    rank 0 of 4, v = 2: stages 0, 4
//   v      as loop, with the ranks in turn back on every other chunk   rank 0 of 4, v = 2: stages 0, 7
enum class Placement { loop, v };
std::vector<int> place_stages(Placement placement, int ranks, int chunks);

// One line per rank, actions separated by commas: PyTorch's format. A pair that may overlap is one cell,
// "(0F3;3B1)OVERLAP_F_B".
std::string to_string(const Table& table);

// Reads that format: cells that are empty (slots PyTorch leaves idle) are dropped, lines may end in CR LF. Stages are
// on the rank in whose line they stand first; there are as many micro-batches as most stages have forwards of.
//   throws InvalidArgument for a cell that is no action, naming line and cell, and for a text without actions. Whether
//   the table is a right one says validate.
Table parse_table(std::string_view text);

}  // namespace lockstep::schedule
