// The loss scale: fp16 has no numbers between 0 and 6e-8, so the loss is multiplied before backward and gradients are
// divided after it. The factor rises until gradients overflow, and falls when they do; such a step is skipped.
//   source   Micikevicius et al. 2018, "Mixed precision training", section 3.2; defaults of torch.amp.GradScaler
#pragma once

#include <cstdint>

#include "lockstep/spec/plan.h"

namespace lockstep::optim {

struct LossScaleOptions {
  double initial = 65536;  // a power of two: scaling and unscaling round nothing
  double growth = 2;       // factor after `growth_interval` finite steps in a row
  double backoff = 0.5;    // factor after a step that was not finite
  int64_t growth_interval = 2000;
};

// Equal on all ranks when all begin from one value and give `update` the same decisions.
class LossScale {
 public:
  // Constantly 1: what bf16, fp32 and fp64 need.
  LossScale() : options_{.initial = 1, .growth = 1, .backoff = 1}, value_(1) {}
  explicit LossScale(const LossScaleOptions& options) : options_(options), value_(options.initial) {}

  double value() const { return value_; }

  // After each step: whether all of its gradients were finite, on all ranks.
  void update(bool finite) {
    if (!finite) {
      value_ *= options_.backoff;
      finite_in_a_row_ = 0;
    } else if (++finite_in_a_row_ == options_.growth_interval) {
      value_ *= options_.growth;
      finite_in_a_row_ = 0;
    }
  }

 private:
  LossScaleOptions options_;
  double value_;
  int64_t finite_in_a_row_ = 0;
};

}  // namespace lockstep::optim
