// How far a run is: one line that is rewritten on a terminal, plain lines now and then otherwise. On standard error.
#pragma once

#include <string>

#include "lockstep/train/trainer.h"

namespace lockstep::train {

class Progress {
 public:
  explicit Progress(int64_t steps);
  void show(const StepReport& report);
  void line(const std::string& text);  // a line of its own, which stays
  void finish();                       // ends the rewritten line

 private:
  int64_t steps_;
  bool terminal_;
  double started_s_, shown_s_ = 0;
  bool line_open_ = false;
};

}  // namespace lockstep::train
