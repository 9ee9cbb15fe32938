// Parameters by the ranks over which their gradients are summed. Those ranks hold the same of them, so they are also
// who may share their states.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/spec/placement.h"

namespace lockstep::train {

struct GradientSet {
  std::unique_ptr<comm::ProcessGroup> own_group;  // null: the data group is it
  comm::ProcessGroup* group = nullptr;
  std::vector<size_t> parameters;  // indices
};

// In the order in which the parameters name them: the same on all ranks.
std::vector<GradientSet> gradient_sets(const std::vector<spec::ParameterPlace>& places, comm::ProcessGroup& world,
                                       comm::ProcessGroup& data_group);

}  // namespace lockstep::train
