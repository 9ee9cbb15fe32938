// Parameters by the ranks over which their gradients are summed and the stages that use them. Those ranks hold the same
// of them, so they are also who may share their states; and their gradients are complete together.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/schedule/table.h"
#include "lockstep/spec/placement.h"

namespace lockstep::train {

struct GradientSet {
  std::vector<size_t> parameters;                  // indices
  std::shared_ptr<comm::ProcessGroup> own_group;   // null: the data group is it
  comm::ProcessGroup* group = nullptr;             // that gradients are summed over
  std::unique_ptr<comm::ProcessGroup> tied_group;  // that then add theirs, for copies of other stages; null: none

  std::vector<int> stages;  // that use them
  // The backwards of the rank's list with which gradients may leave. Empty: they leave when the set is finished,
  // because several stages of this rank use it.
  std::vector<schedule::Action> last_backwards;
  int finished_with = 0;  // the stage whose reduction, the last of the set's in the list, completes it
};

// In the order in which the parameters name them: the same on all ranks that share one.
//   actions   this rank's list of a step
std::vector<GradientSet> gradient_sets(const std::vector<spec::ParameterPlace>& places,
                                       const std::vector<schedule::Action>& actions, comm::ProcessGroup& world,
                                       comm::ProcessGroup& data_group);

}  // namespace lockstep::train
