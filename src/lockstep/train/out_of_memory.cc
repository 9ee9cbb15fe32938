#include "lockstep/train/out_of_memory.h"

#include <torch/torch.h>

#include <new>
#include <string>
#include <system_error>

#include "lockstep/base/units.h"
#include "lockstep/cost/memory.h"

namespace lockstep::train {
namespace {

std::string out_of_memory(const spec::RunPlan& plan, const comm::ProcessGroup& world) {
  const int64_t zero = plan.parallel.zero;
  const auto states = [&](int64_t stage) {
    spec::RunPlan other = plan;
    other.parallel.zero = stage;
    if (stage < 3) other.parallel.gather = spec::Gather::layer;
    return format_size(static_cast<int64_t>(
        cost::memory_ledger(other, world.size() / plan.parallel.tensor / plan.parallel.pipeline).total()));
  };
  std::string message = text("rank ", world.rank(), " is out of memory: training states take ", states(zero),
                             " a rank with parallel.zero = ", zero, ", beside activations");
  if (world.size() > 1 && zero < 3) return message + text("; with parallel.zero = 3 they take ", states(3));
  return message + "; use more ranks with parallel.zero = 3, a smaller model or a smaller train.microbatch";
}

}  // namespace

void explaining_out_of_memory(const spec::RunPlan& plan, const comm::ProcessGroup& world,
                              const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find("can't allocate memory") == std::string_view::npos) throw;
    throw Error(out_of_memory(plan, world));
  } catch (const std::bad_alloc&) {
    throw Error(out_of_memory(plan, world));
  } catch (const std::system_error& error) {  // of a thread whose stack found no room
    if (error.code() != std::errc::resource_unavailable_try_again) throw;
    throw Error(out_of_memory(plan, world));
  }
}

}  // namespace lockstep::train
