#include "lockstep/distributed/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace lockstep {
namespace {

std::atomic<int64_t> used{0}, peak{0};

void add(int64_t bytes) {
  const int64_t now = used.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t largest = peak.load(std::memory_order_relaxed);
  while (now > largest && !peak.compare_exchange_weak(largest, now, std::memory_order_relaxed)) {
  }
}

// The CPU's own allocator, with the size of each block remembered until it is freed.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static CountingAllocator& counting = *new CountingAllocator(*c10::GetCPUAllocator());  // outlives every tensor
    return counting;
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = inner_.allocate(bytes);
    const c10::Device device = memory.device();
    void* const data = memory.release_context();
    if (data == nullptr) return {nullptr, device};
    {
      const std::lock_guard lock(mutex_);
      bytes_of_[data] = static_cast<int64_t>(bytes);
    }
    add(static_cast<int64_t>(bytes));
    return {data, data, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { inner_.copy_data(to, from, bytes); }

 private:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}

  static void release(void* data) {
    CountingAllocator& self = instance();
    int64_t bytes = 0;
    {
      const std::lock_guard lock(self.mutex_);
      const auto found = self.bytes_of_.find(data);
      if (found != self.bytes_of_.end()) {  // else from before counting began
        bytes = found->second;
        self.bytes_of_.erase(found);
      }
    }
    self.inner_.raw_deallocate(data);
    add(-bytes);
  }

  c10::Allocator& inner_;
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> bytes_of_;
};

}  // namespace

void count_tensor_memory() {
  c10::SetCPUAllocator(&CountingAllocator::instance(), /*priority=*/1);
}

MemorySince::MemorySince() {
  count_tensor_memory();
  reset_memory_peak();
  before_ = memory_use().bytes;
}

MemoryUse memory_use() {
  return {used.load(), peak.load()};
}

void reset_memory_peak() {
  peak.store(used.load());
}

void add_registered_memory(int64_t bytes) {
  add(bytes);
}

}  // namespace lockstep
