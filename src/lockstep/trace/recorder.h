// Records events in memory of fixed size, cheaply enough to be always on: per track a ring that forgets the oldest.
#pragma once

#include <array>
#include <mutex>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/trace/event.h"

namespace lockstep::trace {

class Recorder {
 public:
  // `capacity` events are kept per track; memory is allocated here and never again.
  explicit Recorder(int rank, size_t capacity = 1 << 14);

  // Safe from any thread. start_s and end_s are now_s() values.
  void record(Track track, std::string_view name, double start_s, double end_s, int64_t bytes = 0, int stage = -1,
              int microbatch = -1);

  // The events kept, oldest first per track, started at or after `since_s`.
  std::vector<Event> events(double since_s = 0) const;

  int rank() const { return rank_; }
  int64_t recorded() const;   // ever
  int64_t forgotten() const;  // overwritten

 private:
  struct Ring {
    mutable std::mutex mutex;
    std::vector<Event> slots;
    int64_t written = 0;
  };
  int rank_;
  std::array<Ring, 2> rings_;
};

// Records the life of this object as one event. A null recorder records nothing.
class Span {
 public:
  Span(Recorder* recorder, Track track, std::string_view name, int64_t bytes = 0, int stage = -1, int microbatch = -1)
      : recorder_(recorder),
        track_(track),
        name_(name),
        bytes_(bytes),
        stage_(stage),
        microbatch_(microbatch),
        start_s_(recorder ? now_s() : 0) {}
  ~Span() {
    if (recorder_) recorder_->record(track_, name_, start_s_, now_s(), bytes_, stage_, microbatch_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Recorder* recorder_;
  Track track_;
  std::string_view name_;
  int64_t bytes_;
  int stage_, microbatch_;
  double start_s_;
};

}  // namespace lockstep::trace
