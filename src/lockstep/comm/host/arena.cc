#include "lockstep/comm/host/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "lockstep/base/units.h"

namespace lockstep::comm::host {
namespace {

// What the kernel says can be used without swapping.
int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  std::string rest;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes << 10;
    std::getline(file, rest);
  }
  return int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace

void check_memory(int64_t bytes) {
  if (bytes < 0) throw InvalidArgument(text("allocate(", bytes, "): a size must not be negative (nearest: 0)"));
  const int64_t available = available_memory();
  if (bytes > available) {
    throw InvalidArgument(text("allocate: ", format_size(bytes), " is more than this host has available (",
                               format_size(available),
                               "): use smaller buckets or a smaller model, or fewer ranks here"));
  }
}

Arena::Arena(std::shared_ptr<Segment> segment, int rank) : segment_(std::move(segment)) {
  const Control& control = segment_->control();
  free_[control.arena_offset + rank * control.arena_bytes] = control.arena_bytes;
}

Registered Arena::allocate(int64_t bytes) {
  check_memory(bytes);
  const int64_t needed = round_up(std::max<int64_t>(bytes, 1), kPage);
  int64_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto fits =
        std::find_if(free_.begin(), free_.end(), [&](const auto& block) { return block.second >= needed; });
    if (fits == free_.end()) {
      throw InvalidArgument(text("allocate: no ", format_size(bytes), " in one piece left of the ",
                                 format_size(segment_->control().arena_bytes), " of a rank"));
    }
    offset = fits->first;
    const int64_t rest = fits->second - needed;
    free_.erase(fits);
    if (rest > 0) free_[offset + needed] = rest;
  }
  std::shared_ptr<void> memory(segment_->at(offset),
                               [arena = shared_from_this(), offset, needed](void*) { arena->release(offset, needed); });
  // Fresh pages are zero. Asking for them all at once tells whether they exist; kernels before 5.14 cannot be asked.
  const int populated = madvise(memory.get(), static_cast<size_t>(needed), MADV_POPULATE_WRITE);
  if (populated != 0 && errno != EINVAL) {
    throw InvalidArgument(text("allocate: the host cannot give ", format_size(bytes), " (", std::strerror(errno), ")"));
  }
  if (populated != 0) std::memset(memory.get(), 0, static_cast<size_t>(needed));
  return {std::move(memory), bytes};
}

void Arena::release(int64_t offset, int64_t bytes) {
  madvise(segment_->at(offset), static_cast<size_t>(bytes), MADV_REMOVE);  // back to the host; zero when used again
  const std::lock_guard lock(mutex_);
  auto block = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(block); next != free_.end() && offset + bytes == next->first) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block != free_.begin()) {
    const auto before = std::prev(block);
    if (before->first + before->second == block->first) {
      before->second += block->second;
      free_.erase(block);
    }
  }
}

}  // namespace lockstep::comm::host
