// For tests of what goes wrong.
#pragma once

#include <barrier>
#include <chrono>
#include <functional>
#include <vector>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/in_process/in_process.h"

namespace lockstep::comm {

using RankBody = std::function<void(ProcessGroup&)>;

// What each rank's body threw, where start(body) runs it on all ranks; a rank without an error has kind none.
inline std::vector<Failure> failures_of(int ranks, const std::function<void(const RankBody&)>& start,
                                        const RankBody& body) {
  std::vector<Failure> result(static_cast<size_t>(ranks));
  try {
    start([&](ProcessGroup& group) {
      try {
        body(group);
      } catch (...) {
        result[static_cast<size_t>(group.rank())] = Failure::of(std::current_exception());
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return result;
}

inline std::vector<Failure> failures(int ranks, std::chrono::milliseconds deadline, const RankBody& body) {
  return failures_of(ranks, [&](const RankBody& each) { run_ranks(ranks, {.deadline = deadline}, each); }, body);
}

// `work`, and then, unless it throws, the wait for everybody else's.
inline void end_together(std::barrier<>& done, const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    done.arrive_and_drop();
    throw;
  }
  done.arrive_and_wait();
}

}  // namespace lockstep::comm
