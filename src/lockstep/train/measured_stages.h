// Where a pipeline is cut by what the model's parts take on this machine: parallel.stages = "measured".
#pragma once

#include "lockstep/spec/plan.h"

namespace lockstep::train {

// A plan for `ranks` ranks as they are to run it. Where the cut is to be measured, embedding, a layer and the head with
// the loss are timed here, alone on one rank, about a second in all, and parallel.stages becomes the cut that balances
// a step's actions (cost::step_costs). Call it on one process of a job: times differ, and so may cuts.
//   plan     valid
spec::RunPlan with_measured_stages(spec::RunPlan plan, int ranks);

}  // namespace lockstep::train
