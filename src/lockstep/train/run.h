// A whole training run on the ranks of `world`: steps, validation, progress, metrics, weights.
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/spec/plan.h"
#include "lockstep/train/run_directory.h"

namespace lockstep::train {

// Every rank calls it with the same plan and gets the same summary; rank 0 writes the files of run.directory.
//   layout   its name in the summary, as the user gave it
Summary run(const spec::RunPlan& plan, const std::string& layout, comm::ProcessGroup& world);

}  // namespace lockstep::train
