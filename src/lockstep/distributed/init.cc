#include "lockstep/distributed/init.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <cstdio>
#include <exception>

#include "lockstep/base/log.h"
#include "lockstep/launch/world.h"

namespace lockstep {
namespace {

// Ends the process with one line, so that a program without a try block still reports a lost rank as exit code 3.
[[noreturn]] void end_with_one_line() {
  int code = 70;
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
    log::error("terminated without an exception");
  } catch (const Error& error) {
    log::error(error.type_name(), ": ", error.what());
    code = error.exit_code();
  } catch (const std::exception& error) {
    log::error(error.what());
    code = 1;
  } catch (...) {
    log::error("an exception of unknown type");
  }
  std::fflush(nullptr);
  std::_Exit(code);
}

// By default glibc returns large blocks to the kernel and pays the page faults again in every step.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 25);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace

void prepare_rank_thread(int intraop_threads) {
  at::set_num_threads(intraop_threads);
}

std::unique_ptr<ProcessGroup> init(const InitOptions& options) {
  std::set_terminate(end_with_one_line);
  keep_freed_memory();
  auto world = launch::world_from_environment({.deadline = options.deadline});
  log::configure({.rank = world->rank(),
                  .world_size = world->size(),
                  .show_all_ranks = options.show_all_ranks,
                  .also_to_file = options.log_file});
  prepare_rank_thread(options.intraop_threads);
  return world;
}

}  // namespace lockstep
