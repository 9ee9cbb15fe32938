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

}  // namespace

at::Tensor flat_zeros(int64_t elements, at::ScalarType type, at::Device device, comm::ProcessGroup& group) {
  return device.is_cpu() ? registered_zeros({elements}, type, group)
                         : at::zeros({elements}, at::TensorOptions(device).dtype(type));
}

at::Tensor view_like(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  char* begin = static_cast<char*>(flat.data_ptr()) + offset * element_size(flat.scalar_type());
  const bool dense = parameter.is_non_overlapping_and_dense();
  return at::from_blob(
      begin, parameter.sizes(),
      dense ? parameter.strides() : at::empty_like(parameter, at::MemoryFormat::Contiguous).strides(), [flat](void*) {},
      flat.options());
}

void append(BucketPlan& plan, size_t index, const at::Tensor& parameter) {
  plan.slots.push_back({index, plan.elements});
  plan.elements += round_up(parameter.numel(), kAlignmentBytes / element_size(plan.type));
}

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
    append(plans.back(), index, parameter);
  }
  if (!plans.empty()) close(plans.back());
  return plans;
}

Bucket::Bucket(BucketPlan plan, std::span<const at::Tensor> parameters, comm::ProcessGroup& group)
    : plan_(std::move(plan)) {
  flat_ = flat_zeros(plan_.elements, plan_.type, plan_.device, group);
  for (const BucketSlot& slot : plan_.slots)
    gradients_.push_back(view_like(parameters[slot.parameter], flat_, slot.offset));
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
