#include "lockstep/measure/account.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/collective/program.h"
#include "lockstep/comm/share_text.h"

namespace lockstep::measure {
namespace {

bool is_program(const Row& row) {
  return row.algorithm != kAuto && row.algorithm != collective::kNative && row.hosts == 1;
}

cost::Sample counted(const Row& row) {
  const collective::Program program = collective::make_program(*in_collective(row.shape.operation), row.algorithm,
                                                               {.ranks = row.ranks, .root = row.shape.root});
  const std::vector<int64_t> sizes = collective::piece_sizes(program, row.shape.count);
  const int64_t element = comm::element_size(row.shape.type);
  // With links of which only one property counts, the price is a number of messages, or of bytes.
  const cost::Link messages_only{.start_up_s = 1, .bandwidth_bytes_per_s = std::numeric_limits<double>::infinity()};
  const cost::Link bytes_only{.bandwidth_bytes_per_s = 1};
  return {.messages = std::llround(cost::transfer_time(program, sizes, element, {.inside = messages_only}).start_up_s),
          .bytes = std::llround(cost::transfer_time(program, sizes, element, {.inside = bytes_only}).bandwidth_s),
          .time_s = row.time_s};
}

}  // namespace

std::optional<collective::Operation> in_collective(comm::Operation operation) {
  if (comm::is_message(operation) || operation == comm::Operation::barrier) return std::nullopt;
  return collective::parse_operation(comm::name(operation));
}

cost::Sample sample_of(const Row& row) {
  if (is_program(row)) return counted(row);
  const double bytes = static_cast<double>(row.bytes) * bus_factor(row.shape.operation, row.ranks);
  return {.messages = 1, .bytes = std::llround(bytes), .time_s = row.time_s};
}

std::optional<cost::Link> fit(std::span<const Row> rows) {
  std::vector<cost::Sample> samples;
  for (const Row& row : rows) samples.push_back(sample_of(row));
  if (rows.empty() || rows.front().ranks == 1) return std::nullopt;
  try {
    return cost::fit_link(samples);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

Account account(const Row& row, const cost::Link& link) {
  const cost::Sample sample = sample_of(row);
  Account result{.start_up_s = static_cast<double>(sample.messages) * link.start_up_s,
                 .bandwidth_s = static_cast<double>(sample.bytes) / link.bandwidth_bytes_per_s};
  result.bound_by = result.bandwidth_s > result.start_up_s ? "bandwidth" : "start-up";
  if (row.skew_s > std::max(result.start_up_s, result.bandwidth_s)) result.bound_by = "skew";
  return result;
}

double compulsory_bandwidth(const Row& row) {
  return 2.0 * row.ranks * static_cast<double>(row.bytes) / row.time_s;
}

collective::RuleTable fastest(std::span<const Row> rows) {
  std::map<int64_t, const Row*> best;
  for (const Row& row : rows) {
    const Row*& so_far = best[row.bytes];
    if (so_far == nullptr || row.time_s < so_far->time_s) so_far = &row;
  }
  collective::RuleTable table;
  for (const auto& [bytes, row] : best) {
    if (table.empty() || table.back().algorithm != row->algorithm) {
      table.push_back({.operation = *in_collective(row->shape.operation),
                       .several_hosts = row->hosts > 1,
                       .min_ranks = row->ranks,
                       .max_ranks = row->ranks,
                       .algorithm = row->algorithm});
    }
    table.back().max_bytes = bytes;
  }
  if (!table.empty()) table.back().max_bytes = collective::Rule::kNoBytesLimit;
  return table;
}

collective::RuleTable completed(collective::RuleTable table, std::string_view backend) {
  if (backend == "mpi") {
    const collective::RuleTable& rest = collective::builtin_rules();
    table.insert(table.end(), rest.begin(), rest.end());
    return table;
  }
  for (int operation = 0; operation < collective::kOperations; ++operation) {
    table.push_back(
        {.operation = static_cast<collective::Operation>(operation), .algorithm = std::string(collective::kNative)});
  }
  return table;
}

collective::RuleTable shared_table(comm::ProcessGroup& group, const collective::RuleTable& table) {
  return collective::parse_rules(comm::shared_text(group, to_string(table)));
}

}  // namespace lockstep::measure
