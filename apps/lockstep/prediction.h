// What a step of a plan's pipeline will take, before any rank starts.
#pragma once

#include <vector>

#include "lockstep/spec/plan.h"
#include "lockstep/trace/event.h"

namespace lockstep::cli {

// Every stage's actions are timed here, alone on one rank, and the table that the run will interpret is simulated with
// those times and with what a message takes between two ranks of this host. Tensor ranks are taken to share a stage's
// time evenly, and ranks beyond the machine's cores the cores; reductions take no time. Events of every rank's compute,
// in seconds from 0.
std::vector<trace::Event> predict_step(const spec::RunPlan& plan, int ranks);

}  // namespace lockstep::cli
