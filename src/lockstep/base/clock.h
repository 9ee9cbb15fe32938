// The one clock: monotonic seconds, the same in all processes of one host.
#pragma once

#include <chrono>

namespace lockstep {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
