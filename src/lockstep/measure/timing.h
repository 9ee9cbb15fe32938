// Times collective calls between the ranks of a group, by the definitions of nccl-tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/measure/known_call.h"

namespace lockstep::measure {

// The algorithm of calls that name none.
inline constexpr std::string_view kAuto = "auto";

struct Effort {
  int calls = 0;  // timed in a row; 0: as many as some 40 ms hold, in rounds of which the median counts
  int warm_up = 5;
};

// One measurement. The same on every rank.
struct Row {
  CallShape shape;
  std::string backend;
  std::string algorithm{kAuto};
  bool in_place = false;
  int ranks = 1, hosts = 1;
  int64_t bytes = 0;   // bytes_of(shape, ranks)
  double time_s = 0;   // of a call: mean over the ranks
  double skew_s = -1;  // how long a rank, on average, waited in a call for the last one to make it; -1: several hosts
  int64_t wrong = 0;   // values, of all ranks

  double algorithm_bandwidth() const { return static_cast<double>(bytes) / time_s; }  // bytes/s
  double bus_bandwidth() const { return algorithm_bandwidth() * bus_factor(shape.operation, ranks); }
};

struct Series {
  CallShape shape;             // but for count
  std::vector<int64_t> bytes;  // rising; rounded up, and measured once where that makes two the same
  std::vector<std::string> algorithms{std::string(kAuto)};
  bool leave_out_refused = false;  // algorithms that the backend has not got for this type, instead of throwing
  bool out_of_place = true;        // beside in place; sendrecv is always out of place
  Effort effort;
};

// Every size with every algorithm; `report` is told each row as it comes. All ranks of the group call it alike.
//   throws   what the calls throw
std::vector<Row> measure(comm::ProcessGroup& group, const Series& series,
                         const std::function<void(const Row&)>& report);

// Bytes per second, read and written, that all ranks of the group move together in streaming copies of memory beyond
// the caches: what a long all_reduce inside a host is bound by.
double copy_bandwidth(comm::ProcessGroup& group);

// Different hosts among the ranks, by name.
int count_hosts(comm::ProcessGroup& group);

}  // namespace lockstep::measure
