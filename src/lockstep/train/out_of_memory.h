// What a user is told when a rank's memory does not suffice.
#pragma once

#include <functional>

#include "lockstep/comm/process_group.h"
#include "lockstep/spec/plan.h"

namespace lockstep::train {

// Runs `body`.
//   throws   Error instead of libtorch's and the standard library's errors about memory: what the plan's states take on
//            this rank, and what they would take with more sharding
void explaining_out_of_memory(const spec::RunPlan& plan, const comm::ProcessGroup& world,
                              const std::function<void()>& body);

}  // namespace lockstep::train
