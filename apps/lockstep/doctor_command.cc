// lockstep doctor: what this machine offers, and the shared-memory link as measured now.
#include <sys/sysinfo.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/distributed/device.h"
#include "lockstep/distributed/init.h"
#include "lockstep/launch/world.h"

namespace lockstep::cli {
namespace {

struct Link {
  double latency_us = 0, all_reduce_GBps = 0;
};

std::vector<std::string> available_backends() {
  std::vector<std::string> names;
  for (const launch::Backend& backend : launch::backends()) {
    if (backend.missing_because.empty()) names.emplace_back(backend.name);
  }
  return names;
}

double seconds_per_all_reduce(comm::ProcessGroup& world, int64_t count, int repeats) {
  const auto memory = world.allocate(count * 4);
  const comm::Buffer buffer{.data = memory.data(), .count = count, .type = comm::DataType::f32};
  for (int i = 0; i < repeats / 4 + 1; ++i) world.all_reduce(buffer, comm::Reduction::sum);
  const double start_s = now_s();
  for (int i = 0; i < repeats; ++i) world.all_reduce(buffer, comm::Reduction::sum);
  return (now_s() - start_s) / repeats;
}

Link measure_link() {
  Link link;
  comm::run_ranks(2, {}, [&](comm::ProcessGroup& world) {
    const double small_s = seconds_per_all_reduce(world, 1, 2000);
    constexpr int64_t kCount = 1 << 22;
    const double large_s = seconds_per_all_reduce(world, kCount, 20);
    if (world.rank() == 0) link = {small_s * 1e6, static_cast<double>(kCount) * 4 / large_s * 1e-9};
  });
  return link;
}

int doctor(bool as_json) {
  prepare_rank_thread(1);
  struct sysinfo memory{};
  sysinfo(&memory);
  const auto total_bytes = static_cast<int64_t>(memory.totalram) * memory.mem_unit,
             free_bytes = static_cast<int64_t>(memory.freeram) * memory.mem_unit;
  const Link link = measure_link();
  const nlohmann::ordered_json document = {{"cores", std::thread::hardware_concurrency()},
                                           {"memory_bytes", total_bytes},
                                           {"memory_free_bytes", free_bytes},
                                           {"torch", TORCH_VERSION},
                                           {"cuda_devices", device_count(c10::kCUDA)},
                                           {"backends", available_backends()},
                                           {"all_reduce_4B_us", link.latency_us},
                                           {"all_reduce_16MiB_GBps", link.all_reduce_GBps}};
  if (as_json) {
    std::cout << document.dump(1) << "\n";
    return 0;
  }
  std::printf(
      "cores          %u\nmemory         %s (%s free)\nlibtorch       %s\nCUDA devices   %d\nbackends       %s\n",
      std::thread::hardware_concurrency(), format_size(total_bytes).c_str(), format_size(free_bytes).c_str(),
      TORCH_VERSION, device_count(c10::kCUDA), join(available_backends()).c_str());
  std::printf("all_reduce     2 ranks, 4 B: %.2f us; 16 MiB: %.1f GB/s (algorithm bandwidth)\n", link.latency_us,
              link.all_reduce_GBps);
  return 0;
}

}  // namespace

void add_doctor(CLI::App& app, Chosen& chosen) {
  CLI::App* command =
      app.add_subcommand("doctor", "what this machine offers: cores, memory, devices, backends, measured link");
  command->footer("Example: lockstep doctor");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print one JSON document");
  command->callback([&chosen, as_json] { chosen = [as_json] { return doctor(*as_json); }; });
}

}  // namespace lockstep::cli
