#include "lockstep/spec/placement.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "lockstep/spec/names.h"
#include "lockstep/spec/rules.h"
#include "lockstep/spec/stages.h"

namespace lockstep::spec {

namespace {

using mesh::Axis;

// Logical dims that can be split, all of them along the tensor axis.
constexpr std::array<std::string_view, 4> kSplittable = {"vocab", "heads", "kv_heads", "ffn"};

// What parallel.rules says of a dim, or else the default.
std::string rule_of(const ParallelSpec& parallel, std::string_view dim) {
  const auto found = parallel.rules.find(std::string(dim));
  return found == parallel.rules.end() ? "tensor" : found->second;
}

int64_t padded(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

void check_rules(const RunPlan& plan, Rules& rules) {
  const std::vector<std::string> dims(kSplittable.begin(), kSplittable.end()), axes = {"tensor", "none"};
  for (const auto& [dim, axis] : plan.parallel.rules) {
    if (std::ranges::find(dims, dim) == dims.end()) {
      rules.broken(text("parallel.rules.", dim), text('"', axis, '"'),
                   text("no dim that can be split; these can: ", join(dims)), nearest_name(dim, dims));
    } else if (std::ranges::find(axes, axis) == axes.end()) {
      rules.broken(text("parallel.rules.", dim), text('"', axis, '"'), "must be one of tensor, none",
                   nearest_name(axis, axes));
    }
  }
  if (rule_of(plan.parallel, "heads") != rule_of(plan.parallel, "kv_heads")) {
    rules.broken("parallel.rules.kv_heads", text('"', rule_of(plan.parallel, "kv_heads"), '"'),
                 "key/value heads go where their query heads go", text("heads = ", rule_of(plan.parallel, "heads")));
  }
}

void check_heads(const RunPlan& plan, Rules& rules) {
  const int64_t ranks = plan.parallel.tensor, heads = plan.model.heads, kv_heads = plan.model.kv_heads;
  if (heads < 1 || kv_heads < 1) return;
  const auto heads_fit = [&](int64_t candidate) { return heads % candidate == 0; };
  const auto kv_fit = [&](int64_t candidate) { return kv_heads % candidate == 0 || candidate % kv_heads == 0; };
  const std::string nearest =
      nearest_values(ranks, 1, heads, [&](int64_t candidate) { return heads_fit(candidate) && kv_fit(candidate); });
  if (!heads_fit(ranks)) {
    rules.broken("parallel.tensor", ranks, text("must divide model.heads = ", heads, ": heads are not cut"), nearest);
  } else if (!kv_fit(ranks)) {
    rules.broken("parallel.tensor", ranks,
                 text("must divide model.kv_heads = ", kv_heads, " or be a multiple of it: heads are not cut"),
                 nearest);
  }
}

void check_sequence_parallel(const RunPlan& plan, Rules& rules) {
  if (plan.parallel.tensor == 1) {
    rules.broken("parallel.sequence_parallel", "true",
                 "splits what tensor ranks hold alike: needs parallel.tensor of 2", "false");
  }
  for (const std::string_view dim : kSplittable) {
    if (rule_of(plan.parallel, dim) == "tensor") continue;
    rules.broken(text("parallel.rules.", dim), text('"', rule_of(plan.parallel, dim), '"'),
                 "parallel.sequence_parallel gathers the sequence where weights are split: all must be", "\"tensor\"");
  }
  if (plan.model.sequence < plan.parallel.tensor) {
    rules.broken("parallel.tensor", plan.parallel.tensor,
                 text("parallel.sequence_parallel leaves ranks without one of model.sequence = ", plan.model.sequence,
                      " positions"),
                 text(plan.model.sequence));
  }
}

// The stages that use a parameter, ascending.
using Users = std::map<std::string, std::vector<int>>;
Users users_of_parameters(const RunPlan& plan) {
  Users users;
  const std::vector<Stage> stages = cut_into_stages(plan);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (const std::string& name : parameters_of(stages[stage], plan.model)) {
      std::vector<int>& of_name = users[name];
      if (of_name.empty() || of_name.back() != static_cast<int>(stage)) of_name.push_back(static_cast<int>(stage));
    }
  }
  return users;
}

// `ranks`: by stage, the pipeline rank that has it.
void place_on_stages(const std::vector<int>& users, const std::vector<int>& ranks, const mesh::Mesh& mesh, int rank,
                     ParameterPlace& place) {
  mesh::Coordinates coordinates = mesh.coordinates(rank);
  const int own = coordinates[Axis::pipeline];
  for (const int stage : users) {
    const int pipeline_rank = ranks[static_cast<size_t>(stage)];
    if (pipeline_rank == own) place.stages.push_back(stage);
    coordinates[Axis::pipeline] = pipeline_rank;
    const int holder = mesh.rank(coordinates);
    if (std::ranges::find(place.tied_ranks, holder) == place.tied_ranks.end()) place.tied_ranks.push_back(holder);
  }
  if (place.tied_ranks.size() == 1) place.tied_ranks.clear();
  if (ranks[static_cast<size_t>(users.front())] != own) place.counted_in_norm = false;
  std::ranges::sort(place.tied_ranks);
}

}  // namespace

PlacementRules placement_rules(const RunPlan& plan) {
  PlacementRules rules;
  for (const std::string_view dim : kSplittable) {
    if (rule_of(plan.parallel, dim) != "none") rules[std::string(dim)] = {.axis = Axis::tensor};
  }
  if (rules.contains("vocab")) rules["vocab"].padded = true;
  if (rules.contains("heads")) rules["heads"].units = plan.model.heads;
  if (rules.contains("kv_heads")) rules["kv_heads"].units = plan.model.kv_heads;
  return rules;
}

mesh::Placement place(const ParameterSpec& parameter, const PlacementRules& rules, const mesh::Mesh& mesh) {
  mesh::Placement placement;
  for (size_t dim = 0; dim < parameter.logical_dims.size(); ++dim) {
    const auto found = rules.find(parameter.logical_dims[dim]);
    if (found == rules.end()) continue;
    const auto& [axis, units, is_padded] = found->second;
    const int ranks = mesh.size(axis), pieces = units == 0 ? ranks : static_cast<int>(std::min<int64_t>(ranks, units));
    if (ranks > 1) placement.by_axis[axis] = {static_cast<int>(dim), pieces};
  }
  return placement;
}

ParameterPlace place_on_rank(const ParameterSpec& parameter, const RunPlan& plan, const mesh::Mesh& mesh, int rank) {
  const PlacementRules rules = placement_rules(plan);
  const mesh::Placement placement = place(parameter, rules, mesh);
  std::vector<int64_t> padded_shape = parameter.shape;
  for (const auto& [axis, shard] : placement.by_axis) {
    const auto dim = static_cast<size_t>(shard.dim);
    if (rules.at(parameter.logical_dims[dim]).padded) padded_shape[dim] = padded(padded_shape[dim], shard.pieces);
  }
  ParameterPlace result{.region = local_region(padded_shape, placement, mesh, rank)};
  result.shape = result.region.size;
  for (size_t dim = 0; dim < padded_shape.size(); ++dim) {
    auto &offset = result.region.offset[dim], &size = result.region.size[dim];
    offset = std::min(offset, parameter.shape[dim]);
    size = std::min(size, parameter.shape[dim] - offset);
  }

  const int ranks = mesh.size(Axis::tensor), own = mesh.coordinates(rank)[Axis::tensor];
  const auto shard = placement.by_axis.find(Axis::tensor);
  const int sharing = shard == placement.by_axis.end() ? ranks : ranks / shard->second.pieces;
  const bool is_partial = shard == placement.by_axis.end() ? plan.parallel.sequence_parallel : sharing > 1;
  result.counted_in_norm = own % sharing == 0;
  const Axis axes[] = {Axis::data, Axis::tensor};
  for (const int peer : mesh.peers(rank, axes)) {
    const int theirs = mesh.coordinates(peer)[Axis::tensor];
    if (theirs == own || (is_partial && theirs / sharing == own / sharing)) result.gradient_ranks.push_back(peer);
  }
  return result;
}

std::vector<ParameterSpec> parameters_on_rank(const std::vector<ParameterSpec>& list, const RunPlan& plan,
                                              const mesh::Mesh& mesh, int rank) {
  std::set<std::string> used;
  const std::vector<Stage> stages = cut_into_stages(plan);
  for (const int stage : stages_on_rank(plan.parallel, mesh.coordinates(rank)[Axis::pipeline])) {
    for (std::string& name : parameters_of(stages[static_cast<size_t>(stage)], plan.model))
      used.insert(std::move(name));
  }
  std::vector<ParameterSpec> held;
  std::ranges::copy_if(list, std::back_inserter(held), [&](const ParameterSpec& parameter) {
    return parameter.tied_to.empty() && used.contains(parameter.name);
  });
  return held;
}

std::vector<ParameterPlace> place_on_rank(const std::vector<ParameterSpec>& list, const RunPlan& plan,
                                          const mesh::Mesh& mesh, int rank) {
  const Users users = users_of_parameters(plan);
  const std::vector<int> ranks = rank_of_stage(plan.parallel);
  std::vector<ParameterPlace> places;
  for (const ParameterSpec& parameter : parameters_on_rank(list, plan, mesh, rank)) {
    ParameterPlace& place = places.emplace_back(place_on_rank(parameter, plan, mesh, rank));
    place_on_stages(users.at(parameter.name), ranks, mesh, rank, place);
  }
  return places;
}

std::vector<ParameterPlace> whole_places(const std::vector<ParameterSpec>& list) {
  std::vector<ParameterPlace> places;
  for (const ParameterSpec& parameter : list) {
    if (!parameter.tied_to.empty()) continue;
    const mesh::Region whole{std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape};
    places.push_back({.region = whole, .shape = parameter.shape, .gradient_ranks = {0}, .stages = {0}});
  }
  return places;
}

std::vector<Problem> validate_placement(const RunPlan& plan) {
  Rules rules;
  check_rules(plan, rules);
  if (rule_of(plan.parallel, "heads") == "tensor") check_heads(plan, rules);
  const int64_t ffn = plan.model.ffn_hidden;
  if (rule_of(plan.parallel, "ffn") == "tensor" && ffn >= 1 && ffn < plan.parallel.tensor) {
    rules.broken("parallel.tensor", plan.parallel.tensor,
                 text("leaves ranks without a part of model.ffn_hidden = ", ffn), text(ffn));
  }
  if (plan.parallel.sequence_parallel) check_sequence_parallel(plan, rules);
  return rules.take();
}

}  // namespace lockstep::spec
