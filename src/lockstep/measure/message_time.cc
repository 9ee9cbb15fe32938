#include "lockstep/measure/message_time.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <vector>

#include "lockstep/comm/shared_memory/shared_memory.h"
#include "lockstep/measure/rounds.h"

namespace lockstep::measure {
namespace {

constexpr Rounds kRounds{.timed_s = 0.03, .fewest = 1, .most = 500};  // of pairs of messages

// Of one message, by the clock of both ranks.
cost::TimedSize timed(comm::ProcessGroup& group, int64_t bytes) {
  std::vector<char> memory(static_cast<size_t>(bytes));
  const comm::Buffer data{.data = memory.data(), .count = bytes, .type = comm::DataType::u8};
  const int other = 1 - group.rank();
  const auto to_and_fro = [&] {
    if (group.rank() == 0) group.send_async(data, other).wait();
    group.receive_async(data, other).wait();
    if (group.rank() == 1) group.send_async(data, other).wait();
  };
  to_and_fro();
  return {bytes, median_seconds(group, to_and_fro, kRounds) / 2};
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
