// Gradients live in buckets: flat memory that peers can read, so that one collective reduces many gradients without a
// copy. The picture to keep in mind, for one bucket:
//
//   | gradient of p7 | pad | gradient of p6 | pad | ... | flag p7 | flag p6 | ... |
//
// Every gradient starts on a 64-byte boundary. A flag is 1 on a rank whose parameter has a gradient; after the
// reduction it tells whether any rank had one. A parameter that no rank used keeps an undefined gradient, as in one
// process.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

struct BucketSlot {
  size_t parameter;  // index into the list of parameters
  int64_t offset;    // elements from the bucket's begin
};

struct BucketPlan {
  at::ScalarType type;
  at::Device device = at::kCPU;
  std::vector<BucketSlot> slots;
  int64_t flags_offset = 0;  // elements
  int64_t elements = 0;      // gradients, padding and flags
};

// Adds a parameter's place at the end of `plan`; the next one begins on a 64-byte boundary.
void append(BucketPlan& plan, size_t index, const at::Tensor& parameter);

// Packs parameters into buckets in the order given, one type and device per bucket. A bucket is closed when it holds
// `bucket_bytes` (the first: at most 1 MiB, so that communication starts early); one parameter may exceed it.
//   gradient_type   of the buckets; absent: each parameter's own
std::vector<BucketPlan> plan_buckets(std::span<const at::Tensor> parameters, std::span<const size_t> order,
                                     int64_t bucket_bytes, std::optional<at::ScalarType> gradient_type = {});

// Zeros: on CPU in the group's registered memory, on another device wherever libtorch puts them.
at::Tensor flat_zeros(int64_t elements, at::ScalarType type, at::Device device, comm::ProcessGroup& group);

// A tensor of the parameter's sizes and strides over `flat`, from element `offset`, with a version counter of its own.
at::Tensor view_like(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset);

// A planned bucket with its memory.
class Bucket {
 public:
  Bucket(BucketPlan plan, std::span<const at::Tensor> parameters, comm::ProcessGroup& group);

  const BucketPlan& plan() const { return plan_; }
  const at::Tensor& flat() const { return flat_; }
  // The gradient of plan().slots[i], shaped like its parameter.
  at::Tensor& gradient(size_t slot) { return gradients_[slot]; }

  void write_flags(std::span<const bool> used_by_slot);
  std::vector<bool> read_flags() const;

 private:
  BucketPlan plan_;
  at::Tensor flat_;
  std::vector<at::Tensor> gradients_;
  at::Tensor flags_;
};

}  // namespace lockstep::parallel
