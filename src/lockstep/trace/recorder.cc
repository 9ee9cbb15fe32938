#include "lockstep/trace/recorder.h"

#include <algorithm>

namespace lockstep::trace {

Recorder::Recorder(int rank, size_t capacity) : rank_(rank) {
  for (Ring& ring : rings_) ring.slots.resize(std::max<size_t>(capacity, 1));
}

void Recorder::record(Track track, std::string_view name, double start_s, double end_s, int64_t bytes, int stage,
                      int microbatch) {
  Ring& ring = rings_[static_cast<size_t>(track)];
  const std::lock_guard lock(ring.mutex);
  Event& event = ring.slots[static_cast<size_t>(ring.written) % ring.slots.size()];
  event.rank = rank_;
  event.track = track;
  event.set_name(name);
  event.start_s = start_s;
  event.duration_s = end_s - start_s;
  event.bytes = bytes;
  event.stage = stage;
  event.microbatch = microbatch;
  ++ring.written;
}

std::vector<Event> Recorder::events(double since_s) const {
  std::vector<Event> result;
  for (const Ring& ring : rings_) {
    const std::lock_guard lock(ring.mutex);
    const int64_t capacity = static_cast<int64_t>(ring.slots.size());
    for (int64_t i = std::max<int64_t>(0, ring.written - capacity); i < ring.written; ++i) {
      const Event& event = ring.slots[static_cast<size_t>(i % capacity)];
      if (event.start_s >= since_s) result.push_back(event);
    }
  }
  return result;
}

int64_t Recorder::recorded() const {
  int64_t total = 0;
  for (const Ring& ring : rings_) {
    const std::lock_guard lock(ring.mutex);
    total += ring.written;
  }
  return total;
}

int64_t Recorder::forgotten() const {
  int64_t total = 0;
  for (const Ring& ring : rings_) {
    const std::lock_guard lock(ring.mutex);
    total += std::max<int64_t>(0, ring.written - static_cast<int64_t>(ring.slots.size()));
  }
  return total;
}

}  // namespace lockstep::trace
