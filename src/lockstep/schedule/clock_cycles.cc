#include "lockstep/schedule/clock_cycles.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::schedule {

ClockCycles::Iterator ClockCycles::begin() const {
  if (microbatches_ < 0) {
    throw InvalidArgument(Problem{"microbatches", text(microbatches_), "must not be negative", "0"}.message());
  }
  if (stages_ < 1) throw InvalidArgument(Problem{"stages", text(stages_), "must be at least 1", "1"}.message());
  return {this, 0};
}

Wave ClockCycles::wave(int cycle) const {
  Wave wave;
  for (int stage = std::max(0, cycle - microbatches_ + 1); stage <= std::min(cycle, stages_ - 1); ++stage) {
    wave.push_back({cycle - stage, stage});
  }
  return wave;
}

}  // namespace lockstep::schedule
