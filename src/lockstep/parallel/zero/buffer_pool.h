// Flat memory that is used again and again: peers must be able to reach it, and making it anew touches every page.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

class BufferPool {
 public:
  explicit BufferPool(comm::ProcessGroup& group) : group_(group) {}

  // A free buffer of at least so many bytes, the smallest such; undefined when there is none. Bytes are kByte; what is
  // in it is what was left there.
  at::Tensor take_free(int64_t bytes, at::Device device);
  // The same, made when there is none: a free one that is too small gives way.
  at::Tensor take(int64_t bytes, at::Device device);
  void give_back(at::Tensor buffer);

  int64_t bytes() const { return bytes_; }  // of all buffers, free or not

 private:
  comm::ProcessGroup& group_;
  std::vector<at::Tensor> free_;
  int64_t bytes_ = 0;
};

// `elements` of `type` in a buffer, from byte `offset`.
at::Tensor part_of(const at::Tensor& buffer, int64_t offset, int64_t elements, at::ScalarType type);

}  // namespace lockstep::parallel
