#include "lockstep/train/whole.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "lockstep/distributed/collectives.h"
#include "lockstep/spec/placement.h"

namespace lockstep::train {

WholeTensors::WholeTensors(const spec::RunPlan& plan, const mesh::Mesh& mesh,
                           const std::vector<nn::Parameter>& parameters, comm::ProcessGroup& tensor_group,
                           int world_rank)
    : group_(tensor_group) {
  const mesh::Axis tensor_axis[] = {mesh::Axis::tensor};
  const std::vector<int> peers = mesh.peers(world_rank, tensor_axis);
  for (const nn::Parameter& parameter : parameters) {
    Pieces& pieces = pieces_[parameter.spec.name];
    pieces.shape = parameter.spec.shape;
    for (const int peer : peers) {
      pieces.region_of_rank.push_back(spec::place_on_rank(parameter.spec, plan, mesh, peer).region);
    }
  }
}

at::Tensor WholeTensors::gather(const std::string& parameter, const at::Tensor& slice) const {
  const at::NoGradGuard no_grad;
  const auto& [shape, regions] = pieces_.at(parameter);
  if (slice.dim() == 0) return slice.detach().clone();
  const mesh::Region& own_region = regions[static_cast<size_t>(group_.rank())];
  const at::Tensor own = nn::without_padding(slice.detach(), own_region).contiguous();
  at::Tensor whole = at::empty(shape, own.options());
  std::vector<int64_t> counts;
  for (const mesh::Region& region : regions) counts.push_back(region.count());
  if (std::ranges::any_of(counts, [&](int64_t count) { return count != whole.numel(); })) {
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    std::vector<at::Tensor> parts = at::empty({total}, own.options()).split_with_sizes(counts);
    all_gather(parts, own.flatten(), group_, {.tag = parameter});
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      nn::part_of(whole, regions[rank]).copy_(parts[rank].view(regions[rank].size));
    }
  }
  nn::part_of(whole, own_region).copy_(own);
  return whole;
}

std::vector<NamedTensor> WholeTensors::gather(std::vector<NamedTensor> slices) const {
  for (NamedTensor& named : slices) {
    named.tensor = gather(named.name.substr(0, named.name.find('/')), named.tensor);
  }
  return slices;
}

namespace {

// A tensor of any type and shape, from `source` to every rank of the group or to `only_on` alone.
NamedTensor hand_on(const NamedTensor& own, int source, std::optional<int> only_on, comm::ProcessGroup& group) {
  const bool takes = group.rank() != source && (!only_on || group.rank() == *only_on);
  if (only_on && (source == *only_on || (group.rank() != source && !takes))) return own;
  std::vector<char> bytes;
  if (group.rank() == source) {
    bytes = torch::pickle_save(c10::ivalue::Tuple::create({own.name, own.tensor.detach().contiguous()}));
  }
  auto size = static_cast<int64_t>(bytes.size());
  const auto move = [&](at::Tensor wire) {
    if (!only_on) {
      broadcast(wire, source, group, {.tag = "stages"});
    } else if (!takes) {
      send(wire, *only_on, group, {.tag = "stages"});
    } else {
      recv(wire, source, group, {.tag = "stages"});
    }
  };
  move(at::from_blob(&size, {1}, at::kLong));
  bytes.resize(static_cast<size_t>(size));
  move(at::from_blob(bytes.data(), {size}, at::kByte));
  if (!takes) return own;
  const auto elements = torch::pickle_load(bytes).toTuple()->elements();
  return {elements[0].toStringRef(), elements[1].toTensor()};
}

}  // namespace

std::vector<NamedTensor> of_all_stages(std::vector<NamedTensor> own, const spec::ModelSpec& model,
                                       comm::ProcessGroup& pipeline_group, std::optional<int> only_on) {
  if (pipeline_group.size() == 1) return own;
  const auto parameter_of = [](const NamedTensor& named) { return named.name.substr(0, named.name.find('/')); };
  std::map<std::string, std::vector<NamedTensor>> by_parameter;
  for (const NamedTensor& named : own) by_parameter[parameter_of(named)].push_back(named);
  const auto held = by_parameter;
  std::set<std::string> complete;  // of the ranks before
  for (int source = 0; source < pipeline_group.size(); ++source) {
    at::Tensor count = at::full({1}, static_cast<int64_t>(own.size()), at::kLong);
    broadcast(count, source, pipeline_group, {.tag = "stages"});
    std::set<std::string> theirs;
    for (int64_t i = 0; i < count.item<int64_t>(); ++i) {
      const bool mine = source == pipeline_group.rank();
      const NamedTensor named =
          hand_on(mine ? own[static_cast<size_t>(i)] : NamedTensor(), source, only_on, pipeline_group);
      const std::string parameter = parameter_of(named);
      theirs.insert(parameter);
      if (!held.contains(parameter) && !complete.contains(parameter)) by_parameter[parameter].push_back(named);
    }
    complete.merge(theirs);
  }
  if (only_on && pipeline_group.rank() != *only_on) return {};
  std::vector<NamedTensor> all;
  for (const spec::ParameterSpec& parameter : spec::parameters(model)) {
    for (NamedTensor& named : by_parameter[parameter.name]) all.push_back(std::move(named));
  }
  return all;
}

}  // namespace lockstep::train
