#include "lockstep/measure/message_time.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/shared_memory/shared_memory.h"

namespace lockstep::measure {
namespace {

using comm::DataType;

constexpr double kTimed_s = 0.03;  // of each size
constexpr int kRounds = 5;
constexpr int kMostPairs = 500, kFewestPairs = 1;  // of messages, in a round

// Of one message, by the clock of both ranks.
double seconds_per_message(comm::ProcessGroup& group, comm::Buffer data, int pairs) {
  group.barrier();
  const int other = 1 - group.rank();
  const double start_s = now_s();
  for (int i = 0; i < pairs; ++i) {
    if (group.rank() == 0) group.send_async(data, other).wait();
    group.receive_async(data, other).wait();
    if (group.rank() == 1) group.send_async(data, other).wait();
  }
  double time_s = (now_s() - start_s) / (2.0 * pairs);
  group.all_reduce({.data = &time_s, .count = 1, .type = DataType::f64}, comm::Reduction::average);
  return time_s;
}

cost::TimedSize timed(comm::ProcessGroup& group, int64_t bytes) {
  std::vector<char> memory(static_cast<size_t>(bytes));
  const comm::Buffer data{.data = memory.data(), .count = bytes, .type = DataType::u8};
  seconds_per_message(group, data, kFewestPairs);
  const double about_s = seconds_per_message(group, data, kFewestPairs);  // the same on both ranks
  const double fitting = kTimed_s / kRounds / std::max(2 * about_s, 1e-9);
  const int pairs = static_cast<int>(std::clamp<double>(fitting, kFewestPairs, kMostPairs));
  std::array<double, kRounds> rounds{};
  for (double& round : rounds) round = seconds_per_message(group, data, pairs);
  std::ranges::sort(rounds);
  return {bytes, rounds[kRounds / 2]};
}

}  // namespace

cost::LinearTime message_time(int64_t bytes) {
  const comm::SharedMemoryWorld world({.ranks = 2, .deadline = std::chrono::seconds(30)});
  const int64_t longest = std::max<int64_t>(64, bytes);
  const auto as_rank = [&](int rank) {
    const comm::JoinedWorld joined = comm::join_shared_memory_world(dup(world.descriptor()), rank);
    std::vector<cost::TimedSize> sizes;
    for (const int64_t share : {16, 4, 1}) sizes.push_back(timed(*joined.group, longest / share));
    return cost::fit_linear_time(sizes);
  };
  std::future<cost::LinearTime> ranks[] = {std::async(std::launch::async, as_rank, 0),
                                           std::async(std::launch::async, as_rank, 1)};
  for (const auto& rank : ranks) rank.wait();
  return ranks[0].get();
}

}  // namespace lockstep::measure
