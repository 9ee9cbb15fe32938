// A whole training run on the ranks of `world`: steps, validation, progress, metrics, weights.
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/spec/plan.h"
#include "lockstep/train/run_directory.h"

namespace lockstep::train {

// Every rank calls it with the same plan; rank 0 writes the files of run.directory and gets the whole summary, the
// others' `per_rank` is the same too.
Summary run(const spec::RunPlan& plan, comm::ProcessGroup& world);

}  // namespace lockstep::train
