#include "lockstep/parallel/data/buckets.h"

#include <torch/torch.h>

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {
namespace {

constexpr int64_t kFirstBucketBytes = 1 << 20;

int64_t element_size(at::ScalarType type) {
  return static_cast<int64_t>(at::elementSize(type));
}

void close(BucketPlan& plan) {
  plan.flags_offset = plan.elements;
  plan.elements += static_cast<int64_t>(plan.slots.size());
}

// A tensor of the parameter's sizes and strides over `flat` from `offset`, with a version counter of its own.
at::Tensor gradient_view(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  char* begin = static_cast<char*>(flat.data_ptr()) + offset * element_size(flat.scalar_type());
  const bool dense = parameter.is_non_overlapping_and_dense();
  return at::from_blob(
      begin, parameter.sizes(),
      dense ? parameter.strides() : at::empty_like(parameter, at::MemoryFormat::Contiguous).strides(), [flat](void*) {},
      flat.options());
}

}  // namespace

std::vector<BucketPlan> plan_buckets(std::span<const at::Tensor> parameters, std::span<const size_t> order,
                                     int64_t bucket_bytes, std::optional<at::ScalarType> gradient_type) {
  const auto type_of = [&](const at::Tensor& parameter) { return gradient_type.value_or(parameter.scalar_type()); };
  std::vector<BucketPlan> plans;
  const auto is_open = [&](const at::Tensor& parameter) {
    if (plans.empty() || plans.back().type != type_of(parameter) || plans.back().device != parameter.device())
      return false;
    const int64_t limit = plans.size() == 1 ? std::min(bucket_bytes, kFirstBucketBytes) : bucket_bytes;
    return plans.back().elements * element_size(plans.back().type) < limit;
  };
  for (const size_t index : order) {
    const at::Tensor& parameter = parameters[index];
    if (!is_open(parameter)) {
      if (!plans.empty()) close(plans.back());
      plans.push_back({.type = type_of(parameter), .device = parameter.device()});
    }
    BucketPlan& plan = plans.back();
    plan.slots.push_back({index, plan.elements});
    plan.elements += round_up(parameter.numel(), kAlignmentBytes / element_size(plan.type));
  }
  if (!plans.empty()) close(plans.back());
  return plans;
}

Bucket::Bucket(BucketPlan plan, std::span<const at::Tensor> parameters, comm::ProcessGroup& group)
    : plan_(std::move(plan)) {
  flat_ = plan_.device.is_cpu() ? registered_zeros({plan_.elements}, plan_.type, group)
                                : at::zeros({plan_.elements}, at::TensorOptions(plan_.device).dtype(plan_.type));
  for (const BucketSlot& slot : plan_.slots)
    gradients_.push_back(gradient_view(flat_, slot.offset, parameters[slot.parameter]));
  flags_ = flat_.narrow(0, plan_.flags_offset, static_cast<int64_t>(plan_.slots.size()));
}

void Bucket::write_flags(std::span<const bool> used_by_slot) {
  std::vector<float> values(used_by_slot.begin(), used_by_slot.end());
  flags_.copy_(at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat));
}

std::vector<bool> Bucket::read_flags() const {
  const at::Tensor values = flags_.to(at::kCPU, at::kFloat).contiguous();
  const float* begin = values.const_data_ptr<float>();
  std::vector<bool> result;
  for (int64_t i = 0; i < values.numel(); ++i) result.push_back(begin[i] != 0);
  return result;
}

}  // namespace lockstep::parallel
