// Gradient accumulation: a pipeline of one stage. Backward follows each forward at once, so that one micro-batch's
// activations are alive at a time.
#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

Table accumulation(const Shape& shape) {
  using enum Action::Kind;
  std::vector<Action> actions;
  for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
    actions.push_back({forward, 0, microbatch});
    actions.push_back({backward, 0, microbatch});
  }
  actions.push_back({reduce_gradient, 0});
  actions.push_back({optimizer_step});
  return {.microbatches = shape.microbatches, .rank_of_stage = {0}, .actions_by_rank = {actions}};
}

}  // namespace lockstep::schedule
