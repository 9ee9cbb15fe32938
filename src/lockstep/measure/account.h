// What measured times are made of: a start-up per message and a bandwidth, fitted, beside the wait for late ranks.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/collective/choose.h"
#include "lockstep/cost/link.h"
#include "lockstep/measure/timing.h"

namespace lockstep::measure {

// collective's name of an operation; none for sendrecv.
std::optional<collective::Operation> in_collective(comm::Operation operation);

// Messages and bytes that follow one another on the slowest rank. On one host a named algorithm is counted by its
// program; of others only what every algorithm must do is known: one message, of the bytes that a link must carry.
cost::Sample sample_of(const Row& row);

// Start-up and bandwidth of rows of one operation, backend and algorithm.
//   returns  nothing where the rows do not determine them: one size only, one rank, longer calls that take no longer
std::optional<cost::Link> fit(std::span<const Row> rows);

// One row beside the fit.
struct Account {
  double start_up_s = 0, bandwidth_s = 0;  // predicted; their sum is the predicted time
  std::string_view bound_by;               // "start-up", "bandwidth" or "skew": the largest of the two and of skew_s
  double predicted_s() const { return start_up_s + bandwidth_s; }
};
Account account(const Row& row, const cost::Link& link);

// Bytes per second, read and written, that an all_reduce of `bytes` inside one host moves at least: every rank's input
// must be read once and every rank's output written once, 2 p S in all.
double compulsory_bandwidth(const Row& row);

// The fastest algorithm of each size, as a table for the number of ranks and the kind of hosts that were measured:
// rules up to the largest size at which each is the fastest, the last without a limit. Rows of one operation and
// backend; the same in place and out of place count once, by the faster.
collective::RuleTable fastest(std::span<const Row> rows);

// The table, and after it what serves other calls without a table: on one host's backends their own way, on mpi
// collective's built-in rules.
collective::RuleTable completed(collective::RuleTable table, std::string_view backend);

// Rank 0's table, on every rank.
collective::RuleTable shared_table(comm::ProcessGroup& group, const collective::RuleTable& table);

}  // namespace lockstep::measure
