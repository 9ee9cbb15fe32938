// One rank of memory_test.py.
//
//   memory_program measure CONFIG LAYOUT           trains a few steps and prints, on rank 0, what tensors took
//   memory_program limit CONFIG LAYOUT MEGABYTES   trains under RLIMIT_DATA: so much above what the process has already
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/log.h"
#include "lockstep/cost/memory.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/init.h"
#include "lockstep/distributed/memory.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/toml.h"
#include "lockstep/train/out_of_memory.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

// The most that any rank has.
int64_t largest(int64_t value, ProcessGroup& world) {
  at::Tensor wire = at::full({1}, value, at::kLong);
  all_reduce(wire, world, Reduction::max);
  return wire.item<int64_t>();
}

void measure(const spec::RunPlan& plan, ProcessGroup& world) {
  train::Trainer trainer(plan, world);
  const MemoryUse made = memory_use();
  trainer.step();  // lets buckets and buffers find their sizes
  reset_memory_peak();
  for (int64_t step = 1; step < plan.train.steps; ++step) trainer.step();
  const MemoryUse use = memory_use();
  const int64_t start_peak = largest(made.peak_bytes, world), end = largest(use.bytes, world),
                peak = largest(use.peak_bytes, world);
  const cost::MemoryLedger ledger = cost::memory_ledger(plan, world.size());
  if (world.rank() != 0) return;
  const nlohmann::json result{{"params", spec::parameter_count(plan.model)},
                              {"start_peak", start_peak},
                              {"after_step", end},
                              {"peak", peak},
                              {"states", ledger.states.total()},
                              {"ledger", ledger.total()}};
  std::printf("%s\n", result.dump().c_str());
}

// What RLIMIT_DATA counts: private writable memory.
int64_t data_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kilobytes = 0;
    if (word == "VmData:" && file >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

void train_limited(const spec::RunPlan& plan, int64_t megabytes, ProcessGroup& world) {
  const at::Tensor warm = at::ones({64, 64}).requires_grad_();  // libtorch takes what it needs once
  at::linear(warm, warm).sum().backward();
  barrier(world);
  const rlimit limit{static_cast<rlim_t>(data_bytes() + (megabytes << 20)), RLIM_INFINITY};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw Error("setrlimit failed");
  double loss = 0;
  train::explaining_out_of_memory(plan, world, [&] {
    train::Trainer trainer(plan, world);
    for (int64_t step = 0; step < plan.train.steps; ++step) loss = trainer.step().loss;
  });
  const int64_t registered_peak = largest(memory_use().peak_bytes, world);  // tensors are not counted here
  if (world.rank() == 0) {
    const nlohmann::json result{{"final_loss", loss}, {"registered_peak", registered_peak}};
    std::printf("%s\n", result.dump().c_str());
  }
}

int run(const std::string& mode, const std::string& config, const std::string& name, int64_t megabytes) {
  const auto world = init();
  if (mode == "measure") count_tensor_memory();
  const spec::Layout layout = spec::parse_layout(name);
  const spec::RunPlan plan = spec::apply(layout, spec::read_plan(config, {}));
  if (mode == "measure") {
    measure(plan, *world);
  } else {
    train_limited(plan, megabytes, *world);
  }
  barrier(*world);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "memory_program measure|limit CONFIG LAYOUT [MEGABYTES]\n");
    return 2;
  }
  try {
    return lockstep::run(arguments[1], arguments[2], arguments[3], count > 4 ? std::stoll(arguments[4]) : 0);
  } catch (const lockstep::Error& error) {
    lockstep::log::error(error.what());
    return error.exit_code();
  }
}
