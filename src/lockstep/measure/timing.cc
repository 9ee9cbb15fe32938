#include "lockstep/measure/timing.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/reduce.h"
#include "lockstep/measure/rounds.h"

namespace lockstep::measure {
namespace {

using comm::DataType;
using comm::Reduction;

constexpr Rounds kRounds{.timed_s = 0.04, .fewest = 2, .most = 20'000};
constexpr int kSkewCalls = 50;

int64_t sum_over_ranks(comm::ProcessGroup& group, int64_t value) {
  group.all_reduce({.data = &value, .count = 1, .type = DataType::i64}, Reduction::sum);
  return value;
}

double time_of(comm::ProcessGroup& group, KnownCall& call, const Effort& effort) {
  const auto run = [&call] { call.run(); };
  for (int i = 0; i < effort.warm_up; ++i) run();
  return effort.calls > 0 ? mean_seconds(group, run, effort.calls) : median_seconds(group, run, kRounds);
}

// By the one clock of a host.
double skew_of(comm::ProcessGroup& group, KnownCall& call) {
  std::array<double, kSkewCalls> arrival_s{};
  for (double& each : arrival_s) {
    each = now_s();
    call.run();
  }
  std::array<double, kSkewCalls> last_s = arrival_s;
  group.all_reduce({.data = last_s.data(), .count = kSkewCalls, .type = DataType::f64}, Reduction::max);
  std::array<double, kSkewCalls> waited_s{};
  for (size_t i = 0; i < kSkewCalls; ++i) waited_s[i] = over_ranks(group, last_s[i] - arrival_s[i], Reduction::average);
  std::ranges::sort(waited_s);
  return waited_s[kSkewCalls / 2];
}

Row measure_one(comm::ProcessGroup& group, Row row, const CallMemory& memory, const Effort& effort) {
  KnownCall call(group, row.shape, row.in_place, row.algorithm == kAuto ? "" : row.algorithm, memory);
  call.fill();
  row.time_s = time_of(group, call, effort);
  if (row.hosts == 1) row.skew_s = skew_of(group, call);
  call.fill();
  call.run();
  row.wrong = sum_over_ranks(group, call.wrong());
  return row;
}

// Out of place and in place, as far as the series wants them.
std::vector<Row> both_ways(comm::ProcessGroup& group, Row row, const CallMemory& memory, const Series& series) {
  std::vector<Row> rows;
  for (const bool in_place : {false, true}) {
    const bool has_in_place = row.shape.operation != comm::Operation::send;
    if (in_place ? !has_in_place : !series.out_of_place && has_in_place) continue;
    row.in_place = in_place;
    try {
      rows.push_back(measure_one(group, row, memory, series.effort));
    } catch (const InvalidArgument&) {  // by every rank, before anything moved
      if (!series.leave_out_refused) throw;
    }
  }
  return rows;
}

}  // namespace

std::vector<Row> measure(comm::ProcessGroup& group, const Series& series,
                         const std::function<void(const Row&)>& report) {
  Row row{.shape = series.shape, .backend = std::string(group.backend()), .ranks = group.size()};
  row.hosts = count_hosts(group);
  CallShape largest = series.shape;
  largest.count = count_for(series.bytes.back(), series.shape, group.size());
  const CallMemory memory(group, bytes_of(largest, group.size()));
  std::vector<Row> rows;
  int64_t last_count = 0;
  for (const int64_t bytes : series.bytes) {
    row.shape.count = count_for(bytes, series.shape, group.size());
    if (row.shape.count == last_count) continue;
    last_count = row.shape.count;
    row.bytes = bytes_of(row.shape, group.size());
    for (const std::string& algorithm : series.algorithms) {
      row.algorithm = algorithm;
      for (const Row& measured : both_ways(group, row, memory, series)) {
        rows.push_back(measured);
        report(measured);
      }
    }
  }
  return rows;
}

double copy_bandwidth(comm::ProcessGroup& group) {
  constexpr int64_t kBytes = 64 << 20;
  constexpr int kRepeats = 10;
  const CallMemory memory(group, kBytes);
  const auto copy = [&] { comm::copy(memory.second.data(), memory.first.data(), kBytes, true); };
  copy();
  group.barrier();
  const double start_s = now_s();
  for (int i = 0; i < kRepeats; ++i) copy();
  group.barrier();
  return 2.0 * kBytes * kRepeats * group.size() / over_ranks(group, now_s() - start_s, Reduction::average);
}

int count_hosts(comm::ProcessGroup& group) {
  std::array<char, 64> own{};
  gethostname(own.data(), own.size() - 1);
  std::vector<char> all(own.size() * static_cast<size_t>(group.size()));
  group.all_gather({.data = own.data(), .count = static_cast<int64_t>(own.size()), .type = DataType::u8},
                   {.data = all.data(), .count = static_cast<int64_t>(all.size()), .type = DataType::u8});
  std::set<std::string> names;
  for (size_t at = 0; at < all.size(); at += own.size()) names.insert(std::string(all.data() + at));
  return static_cast<int>(names.size());
}

}  // namespace lockstep::measure
