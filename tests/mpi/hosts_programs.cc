// What tests/mpi/hosts_test.py runs on ranks of two hosts.
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "job.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/count.h"

namespace lockstep::multiprocess {
namespace {

// What the program says that the first host, which has the first half of the ranks, sends to the second.
int64_t bytes_between_hosts(std::string_view algorithm, int ranks, int64_t count) {
  if (algorithm == collective::kNative) return 0;  // no program
  std::vector<int> hosts;
  for (int r = 0; r < ranks; ++r) hosts.push_back(2 * r / ranks);
  const collective::Program program =
      collective::make_program(collective::Operation::all_reduce, algorithm, {.ranks = ranks, .host_of_rank = hosts});
  return collective::bytes_leaving_host(program, collective::piece_sizes(program, count), sizeof(float), hosts, 0);
}

double all_reduce_s(comm::ProcessGroup& world, std::vector<float>& values, std::string_view algorithm) {
  std::ranges::fill(values, static_cast<float>(world.rank() + 1));
  world.barrier();
  const double start_s = now_s();
  world.all_reduce({.data = values.data(), .count = static_cast<int64_t>(values.size())}, comm::Reduction::sum,
                   {.algorithm = algorithm});
  const double elapsed_s = now_s() - start_s;
  const auto expected = static_cast<float>(world.size() * (world.size() + 1) / 2);
  if (std::ranges::any_of(values, [&](float value) { return value != expected; })) throw InternalError("wrong sum");
  return elapsed_s;
}

// Arguments: count of f32, repeats, algorithms, which take turns. Prints a line of JSON for each: the times on rank 0,
// in order, and what its program sends over the link.
RANK_PROGRAM(all_reduces_between_hosts) {
  const int64_t count = std::stoll(arguments[0]);
  const int repeats = std::stoi(arguments[1]);
  const std::vector<std::string> algorithms(arguments.begin() + 2, arguments.end());
  std::vector<float> values(static_cast<size_t>(count));
  std::map<std::string, std::vector<double>> times_ms;
  for (int i = 0; i < repeats; ++i) {
    for (const std::string& algorithm : algorithms) {
      times_ms[algorithm].push_back(all_reduce_s(world, values, algorithm) * 1e3);
    }
  }
  for (const std::string& algorithm : algorithms) {
    if (world.rank() != 0) continue;
    std::cout << text(R"({"algorithm": ")", algorithm, R"(", "times_ms": [)", join(times_ms[algorithm]),
                      R"(], "leaving_bytes": )", bytes_between_hosts(algorithm, world.size(), count), "}")
              << std::endl;
  }
}

// Sums whose bits show the order of the additions, in f32 on four ranks: asked for, it is the balanced tree wherever
// the ranks are. Prints how many sums differ from that when it is not asked for.
RANK_PROGRAM(adds_in_the_balanced_tree) {
  constexpr int64_t kCount = 1 << 16;
  const auto value = [](int rank, int64_t i) { return 1.0F / static_cast<float>(3 + 7 * rank + i % 1021); };
  const auto differing = [&](bool balanced_tree) {
    std::vector<float> values(kCount);
    for (int64_t i = 0; i < kCount; ++i) values[static_cast<size_t>(i)] = value(world.rank(), i);
    world.all_reduce({.data = values.data(), .count = kCount}, comm::Reduction::sum, {.balanced_tree = balanced_tree});
    int64_t count = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const float expected = (value(0, i) + value(1, i)) + (value(2, i) + value(3, i));
      if (values[static_cast<size_t>(i)] != expected) ++count;
    }
    return count;
  };
  const int64_t asked = differing(true), otherwise = differing(false);
  if (asked != 0) throw InternalError(text(asked, " of ", kCount, " sums were not added in the balanced tree"));
  if (world.rank() == 0) std::cout << R"({"differing_otherwise": )" << otherwise << "}" << std::endl;
}

}  // namespace
}  // namespace lockstep::multiprocess
