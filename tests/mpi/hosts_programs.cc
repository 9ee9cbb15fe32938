// What tests/mpi/hosts_test.py runs on ranks of two hosts.
#include <algorithm>
#include <iostream>

#include "job.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/collective/count.h"

namespace lockstep::multiprocess {
namespace {

// Arguments: algorithm, count of f32, repeats. The first half of the ranks is on one host, the second on the other.
// Prints the fastest and the median time, and what the program says that the first host sends to the other.
RANK_PROGRAM(all_reduces_between_hosts) {
  const std::string algorithm = arguments[0];
  const int64_t count = std::stoll(arguments[1]);
  const int repeats = std::stoi(arguments[2]);
  std::vector<float> values(static_cast<size_t>(count));
  std::vector<double> times_us;
  for (int i = 0; i < repeats; ++i) {
    std::ranges::fill(values, static_cast<float>(world.rank() + 1));
    world.barrier();
    const double start_s = now_s();
    world.all_reduce({.data = values.data(), .count = count}, comm::Reduction::sum, {.algorithm = algorithm});
    times_us.push_back((now_s() - start_s) * 1e6);
    const auto expected = static_cast<float>(world.size() * (world.size() + 1) / 2);
    if (std::ranges::any_of(values, [&](float value) { return value != expected; })) throw InternalError("wrong sum");
  }
  if (world.rank() != 0) return;
  int64_t leaving = 0;
  if (algorithm != collective::kNative) {
    std::vector<int> hosts;
    for (int r = 0; r < world.size(); ++r) hosts.push_back(2 * r / world.size());
    const collective::Program program = collective::make_program(collective::Operation::all_reduce, algorithm,
                                                                 {.ranks = world.size(), .host_of_rank = hosts});
    leaving = collective::bytes_leaving_host(program, collective::piece_sizes(program, count), sizeof(float), hosts, 0);
  }
  std::ranges::sort(times_us);
  std::cout << text(R"({"median_us": )", times_us[times_us.size() / 2], R"(, "fastest_us": )", times_us.front(),
                    R"(, "leaving_bytes": )", leaving, "}")
            << std::endl;
}

}  // namespace
}  // namespace lockstep::multiprocess
