#include "lockstep/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::optim {

double LrSchedule::at(int64_t step) const {
  if (step < train_.warmup_steps) {
    return train_.lr * static_cast<double>(step + 1) / static_cast<double>(train_.warmup_steps);
  }
  const double decaying = static_cast<double>(std::max<int64_t>(train_.steps - train_.warmup_steps, 1));
  const double progress = std::min(1.0, static_cast<double>(step - train_.warmup_steps) / decaying);
  switch (train_.decay) {
    case spec::Decay::none:
      return train_.lr;
    case spec::Decay::linear:
      return train_.lr + (train_.min_lr - train_.lr) * progress;
    case spec::Decay::cosine:
      return train_.min_lr + (train_.lr - train_.min_lr) * (1 + std::cos(std::numbers::pi * progress)) / 2;
  }
  LOCKSTEP_CHECK(false, "unknown decay");
}

}  // namespace lockstep::optim
