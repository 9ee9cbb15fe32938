// Which part of the model is on which stage of a pipeline, and which stages are on which pipeline rank.
//
//   embed -> layers 0 .. n-1 -> head       is cut, in this order, into parallel.pipeline * parallel.chunks stages
//
// parallel.stages says where to cut, stage by stage: the number of its layers, E for the embedding, H for the head,
// joined by "+". Empty: balanced by the forward's floating-point operations. "measured": by times of the machine, which
// whoever starts the ranks takes, and replaces by a cut (train/measured_stages.h).
//
//   "E+2,3,3,2+H"   10 layers on 4 stages         "E,3,3,H"   6 layers, the embedding and the head by themselves
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/schedule/table.h"
#include "lockstep/spec/model.h"
#include "lockstep/spec/plan.h"

namespace lockstep::spec {

inline constexpr std::string_view kMeasured = "measured";

struct Stage {
  bool embed = false;
  mesh::Range layers;  // of the model's; may be none
  bool head = false;
  bool operator==(const Stage&) const = default;
};

// What the model's parts cost, in any unit; every layer the same.
struct PartCosts {
  double embedding = 0, layer = 0, head = 0;
};

// Floating-point operations of forward, a token. The embedding's lookup counts as one addition per feature.
PartCosts forward_flops(const ModelSpec& model);

// Balances the plan's stages by these costs, whatever parallel.stages says: the pipeline rank with most has least, then
// the one with second most, and so on; so have, among such cuts, the stages. Each has one part at least.
std::vector<Stage> cut_into_stages(const RunPlan& plan, const PartCosts& costs);

// The stages of a valid plan.
//   throws   InvalidArgument where the cut is still to be measured
std::vector<Stage> cut_into_stages(const RunPlan& plan);
// "E+2,3,3,2+H"
std::string to_string(const std::vector<Stage>& stages);

// Whether there is more than one stage, to be cut by times that nobody has taken yet.
bool awaits_measuring(const ParallelSpec& parallel);

// By stage, for parallel.schedule.
std::vector<int> rank_of_stage(const ParallelSpec& parallel);
std::vector<int> stages_on_rank(const ParallelSpec& parallel, int pipeline_rank);

// The parameters that a stage reads, by their own name: a tied head is the embedding's table.
std::vector<std::string> parameters_of(const Stage& stage, const ModelSpec& model);

// What parallel.pipeline, schedule, chunks and stages may not be, with so many data ranks.
std::vector<Problem> validate_pipeline(const RunPlan& plan, int64_t data_ranks);

// A step of a pipeline of the plan's kind on so many micro-batches, whole: computing, recomputation, messages,
// reductions. parallel.schedule may also name a file, "x.csv", in PyTorch's format (schedule/table.h); what it lacks of
// these is added.
schedule::Table pipeline_table(const ParallelSpec& parallel, int64_t microbatches);
// Of data rank 0, with as many micro-batches as it has in a valid plan.
schedule::Table step_table(const RunPlan& plan, int world_size);
// Its forwards and their messages alone, as validation runs them.
schedule::Table forward_table(const ParallelSpec& parallel, int64_t microbatches);

}  // namespace lockstep::spec
