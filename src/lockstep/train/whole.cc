#include "lockstep/train/whole.h"

#include <torch/torch.h>

#include <algorithm>

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

}  // namespace lockstep::train
