#include "lockstep/nn/live_bytes.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "lockstep/base/units.h"

namespace lockstep::nn {
namespace {

std::atomic<int64_t> g_live{0}, g_peak{0};

void add(int64_t bytes) {
  const int64_t live = g_live += bytes;
  int64_t peak = g_peak;
  while (peak < live && !g_peak.compare_exchange_weak(peak, live)) {
  }
}

// Before each block lies its size, in as many bytes as keep it aligned: libtorch wants the address of a block to be all
// that it takes to free it.
constexpr size_t kHeaderBytes = kAlignmentBytes;

c10::Allocator* g_beneath = nullptr;

void free_block(void* block) {
  if (block == nullptr) return;
  char* header = static_cast<char*>(block) - kHeaderBytes;
  add(-*reinterpret_cast<const int64_t*>(header));
  g_beneath->raw_deallocate(header);
}

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    char* header = static_cast<char*>(g_beneath->raw_allocate(bytes + kHeaderBytes));
    *reinterpret_cast<int64_t*>(header) = static_cast<int64_t>(bytes);
    add(static_cast<int64_t>(bytes));
    void* block = header + kHeaderBytes;
    return {block, block, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

// libtorch keeps the pointer in every storage: the allocator lives as long as the process.
void install() {
  static CountingAllocator allocator;
  if (g_beneath != nullptr) return;
  g_beneath = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace

LiveBytes::LiveBytes() {
  install();
  before_ = g_live;
  g_peak = before_;
}

int64_t LiveBytes::now() const {
  return g_live - before_;
}

int64_t LiveBytes::peak() const {
  return g_peak - before_;
}

}  // namespace lockstep::nn
