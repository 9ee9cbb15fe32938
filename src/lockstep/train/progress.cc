#include "lockstep/train/progress.h"

#include <unistd.h>

#include <cstdio>

#include "lockstep/base/clock.h"

namespace lockstep::train {
namespace {

constexpr double kTerminalInterval_s = 0.2, kPlainInterval_s = 10;

std::string duration(double seconds) {
  char buffer[32];
  const auto whole = static_cast<long>(seconds + 0.5);
  std::snprintf(buffer, sizeof buffer, "%ld:%02ld", whole / 60, whole % 60);
  return buffer;
}

}  // namespace

Progress::Progress(int64_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) == 1), started_s_(now_s()) {}

void Progress::show(const StepReport& report) {
  const double now = now_s(), interval_s = terminal_ ? kTerminalInterval_s : kPlainInterval_s;
  const bool first_or_last = report.step == 1 || report.step == steps_;
  if (!first_or_last && !report.skipped && now - shown_s_ < interval_s) return;
  shown_s_ = now;
  const double left_s =
      (now - started_s_) / static_cast<double>(report.step) * static_cast<double>(steps_ - report.step);
  char buffer[160];
  std::snprintf(buffer, sizeof buffer, "step %ld/%ld  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s  %s left%s",
                static_cast<long>(report.step), static_cast<long>(steps_), report.loss, report.grad_norm, report.lr,
                static_cast<double>(report.tokens) / report.step_s, duration(left_s).c_str(),
                report.skipped ? "  SKIPPED: the gradient norm is not finite" : "");
  if (terminal_ && !report.skipped) {
    std::fprintf(stderr, "\r\033[K%s", buffer);
    line_open_ = true;
  } else {
    line(buffer);
  }
  std::fflush(stderr);
}

void Progress::line(const std::string& text) {
  finish();
  std::fprintf(stderr, "%s\n", text.c_str());
}

void Progress::finish() {
  if (line_open_) std::fprintf(stderr, "\n");
  line_open_ = false;
}

}  // namespace lockstep::train
