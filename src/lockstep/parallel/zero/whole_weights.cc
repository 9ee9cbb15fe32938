#include "lockstep/parallel/zero/whole_weights.h"

#include <torch/torch.h>

#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {

WholeWeights::WholeWeights(std::span<const at::Tensor> parameters, std::span<const Flat> flats,
                           const ShardGroups& groups, const SetValues& set_values)
    : flats_(flats), groups_(groups) {
  const torch::NoGradGuard no_grad;
  for (const Flat& flat : flats) {
    const BucketPlan& plan = flat.plan;
    whole_.push_back(flat_zeros(plan.elements, plan.type, plan.device, groups.all()));
    for (const BucketSlot& slot : plan.slots) {
      at::Tensor parameter = parameters[slot.parameter];
      const at::Tensor home = view_like(parameter, whole_.back(), slot.offset);
      set_values(slot.parameter, home);
      parameter.set_data(home);
    }
    slices_.push_back(whole_.back().narrow(0, groups.shard().rank() * flat.slice, flat.slice));
  }
}

void WholeWeights::publish() {
  std::vector<comm::Work> works;
  for (size_t flat = 0; flat < flats_.size(); ++flat) {
    const std::string tag = text("weights ", flats_[flat].name);
    works.push_back(all_gather_into_tensor_async(whole_[flat], slices_[flat], groups_.shard(), {.tag = tag}));
  }
  for (const comm::Work& work : works) work.wait();
}

}  // namespace lockstep::parallel
