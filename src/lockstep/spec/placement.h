// Where a model's parameters live. Rules map logical dims to mesh axes; from a parameter's declaration and the rules
// follow the slice that a rank holds, the ranks its gradient is summed over, and whether this rank counts it in the
// gradient's norm.
//
//   logical dim          vocab    heads    kv_heads   ffn      embed, position
//   default              tensor   tensor   tensor     tensor   replicated
//
// One dim of a parameter is sharded along an axis; what no rule names is replicated. A vocabulary that the ranks do not
// divide is padded to the next multiple; key/value heads fewer than ranks are held in pieces that consecutive ranks
// share; a feed-forward width may be cut unevenly.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/mesh/mesh.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/spec/model.h"
#include "lockstep/spec/plan.h"

namespace lockstep::spec {

struct PlacementRule {
  mesh::Axis axis = mesh::Axis::tensor;
  int64_t units = 0;    // that are not cut, e.g. heads; fewer than the axis has ranks: shared. 0: elements
  bool padded = false;  // to a multiple of the axis
};

// By logical dim; what is absent is replicated.
using PlacementRules = std::map<std::string, PlacementRule, std::less<>>;

// The defaults of the table above, changed by parallel.rules.
PlacementRules placement_rules(const RunPlan& plan);

mesh::Placement place(const ParameterSpec& parameter, const PlacementRules& rules, const mesh::Mesh& mesh);

// One parameter on one rank.
struct ParameterPlace {
  mesh::Region region;              // the box of the global tensor; padding is not in it
  std::vector<int64_t> shape;       // what is allocated: the region and, behind it, padding
  std::vector<int> gradient_ranks;  // world ranks, ascending, whose gradients add up to the whole one
  // World ranks, ascending, this one among them, that hold the same for another stage: a table that embedding and head
  // share. Their gradients, each complete after gradient_ranks, add up too. Empty: no other stage uses it.
  std::vector<int> tied_ranks;
  std::vector<int> stages;      // of this rank's, that use it
  bool counted_in_norm = true;  // of the ranks that hold the same elements, the first
  bool operator==(const ParameterPlace&) const = default;
};

// A replicated parameter sees every token on each tensor rank; with sequence parallelism only those of the rank's
// positions, so its gradient is summed over the tensor ranks as well. Ranks that share a piece of the key/value heads
// each see the gradient of their own query heads, and sum.
ParameterPlace place_on_rank(const ParameterSpec& parameter, const RunPlan& plan, const mesh::Mesh& mesh, int rank);

// The parameters of the list that this rank's stages use, in the model's order; none is tied to another.
std::vector<ParameterSpec> parameters_on_rank(const std::vector<ParameterSpec>& list, const RunPlan& plan,
                                              const mesh::Mesh& mesh, int rank);
// For each of those.
std::vector<ParameterPlace> place_on_rank(const std::vector<ParameterSpec>& list, const RunPlan& plan,
                                          const mesh::Mesh& mesh, int rank);

// The same, each whole, as on the only rank of a world.
std::vector<ParameterPlace> whole_places(const std::vector<ParameterSpec>& list);

// What parallel.tensor, parallel.sequence_parallel and parallel.rules may not be for this model.
std::vector<Problem> validate_placement(const RunPlan& plan);

}  // namespace lockstep::spec
