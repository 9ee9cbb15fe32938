// For tests of what goes wrong.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/in_process/in_process.h"

namespace lockstep::comm {

// What each rank's body threw; a rank without an error has kind none.
inline std::vector<Failure> failures(int ranks, std::chrono::milliseconds deadline,
                                     const std::function<void(ProcessGroup&)>& body) {
  std::vector<Failure> result(static_cast<size_t>(ranks));
  try {
    run_ranks(ranks, {.deadline = deadline}, [&](ProcessGroup& world) {
      try {
        body(world);
      } catch (...) {
        result[static_cast<size_t>(world.rank())] = Failure::of(std::current_exception());
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return result;
}

}  // namespace lockstep::comm
