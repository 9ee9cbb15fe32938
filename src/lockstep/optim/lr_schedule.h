// The learning rate as a function of the step alone, so that a resumed run continues it exactly.
#pragma once

#include <cstdint>

namespace lockstep::optim {

enum class Decay { none, linear, cosine };

struct LrSchedule {
  double peak = 1e-3;
  double min = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  Decay decay = Decay::none;

  // Step 0, 1, ...: rises as peak * (step + 1) / warmup_steps, is `peak` at step warmup_steps, and has fallen to `min`
  // at step total_steps and after.
  double at(int64_t step) const;
};

}  // namespace lockstep::optim
