#include "lockstep/parallel/zero/buffer_pool.h"

#include <torch/torch.h>

#include <algorithm>

#include "lockstep/parallel/data/buckets.h"

namespace lockstep::parallel {

at::Tensor BufferPool::take_free(int64_t bytes, at::Device device) {
  auto best = free_.end();
  for (auto buffer = free_.begin(); buffer != free_.end(); ++buffer) {
    if (buffer->device() != device || buffer->numel() < bytes) continue;
    if (best == free_.end() || buffer->numel() < best->numel()) best = buffer;
  }
  if (best == free_.end()) return {};
  at::Tensor taken = std::move(*best);
  free_.erase(best);
  return taken;
}

at::Tensor BufferPool::take(int64_t bytes, at::Device device) {
  if (at::Tensor buffer = take_free(bytes, device); buffer.defined()) return buffer;
  const auto small = std::ranges::find_if(free_, [&](const at::Tensor& buffer) { return buffer.device() == device; });
  if (small != free_.end()) {
    bytes_ -= small->numel();
    free_.erase(small);
  }
  bytes_ += bytes;
  return flat_zeros(bytes, at::kByte, device, group_);
}

void BufferPool::give_back(at::Tensor buffer) {
  free_.push_back(std::move(buffer));
}

at::Tensor part_of(const at::Tensor& buffer, int64_t offset, int64_t elements, at::ScalarType type) {
  return buffer.narrow(0, offset, elements * static_cast<int64_t>(at::elementSize(type))).view(type);
}

}  // namespace lockstep::parallel
