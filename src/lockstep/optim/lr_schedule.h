// The learning rate as a function of the step alone, so that a resumed run continues it exactly.
#pragma once

#include "lockstep/spec/plan.h"

namespace lockstep::optim {

class LrSchedule {
 public:
  explicit LrSchedule(const spec::TrainSpec& train) : train_(train) {}

  // Step 0, 1, ...: rises as lr * (step + 1) / warmup_steps, is `lr` at step warmup_steps, and has fallen to `min_lr`
  // at step `steps` and after.
  double at(int64_t step) const;

 private:
  spec::TrainSpec train_;
};

}  // namespace lockstep::optim
