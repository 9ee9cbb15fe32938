// The reference of verify: one process, one loop, nothing of parallel/. It is the smallest readable training there is,
// and says what every layout must equal.
#pragma once

#include "lockstep/spec/plan.h"
#include "lockstep/train/record.h"

namespace lockstep::train {

// Runs the plan's steps with its micro-batches, added one after the other, or pairwise in a tree with
// parallel.reduction = "fixed_tree". The plan's parallel axes are ignored.
RunRecord plain_loop(const spec::RunPlan& plan);

}  // namespace lockstep::train
