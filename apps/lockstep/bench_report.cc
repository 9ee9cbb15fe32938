#include "bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

using json = nlohmann::ordered_json;
using measure::Row;

// Rows that one fit describes.
struct FittedSeries {
  std::vector<Row> rows;
  std::optional<cost::Link> link;
};

bool same_series(const Row& a, const Row& b) {
  return a.shape.operation == b.shape.operation && a.backend == b.backend && a.algorithm == b.algorithm &&
         a.in_place == b.in_place;
}

std::vector<FittedSeries> fitted(const std::vector<Row>& rows) {
  std::vector<FittedSeries> all;
  for (const Row& row : rows) {
    auto found =
        std::ranges::find_if(all, [&](const FittedSeries& each) { return same_series(each.rows.front(), row); });
    if (found == all.end()) found = all.insert(all.end(), FittedSeries{});
    found->rows.push_back(row);
  }
  for (FittedSeries& each : all) each.link = measure::fit(each.rows);
  return all;
}

const FittedSeries& series_of(const std::vector<FittedSeries>& all, const Row& row) {
  return *std::ranges::find_if(all, [&](const FittedSeries& each) { return same_series(each.rows.front(), row); });
}

// Which of the two is shown as the operation itself: out of place some hold a copy beside it.
bool is_main(const Row& row) {
  return row.in_place || row.shape.operation == comm::Operation::send;
}

// Share of the machine's copy bandwidth; none for what is short, between hosts, or no all_reduce.
std::optional<double> copy_fraction(const BenchResult& result, const Row& row) {
  const auto copy = result.copy_bytes_per_s.find(row.backend);
  if (copy == result.copy_bytes_per_s.end() || row.shape.operation != comm::Operation::all_reduce) return std::nullopt;
  if (row.bytes < kLongBytes || row.hosts > 1 || !row.in_place) return std::nullopt;
  return measure::compulsory_bandwidth(row) / copy->second;
}

json number_or_null(std::optional<double> value) {
  return value ? json(*value) : json(nullptr);
}

json to_json(const BenchResult& result, const Row& row, const std::optional<cost::Link>& link) {
  json entry = {{"op", measure::name_of(row.shape.operation)},
                {"backend", row.backend},
                {"bytes", row.bytes},
                {"count", row.shape.count},
                {"dtype", name(row.shape.type)},
                {"algorithm", row.algorithm},
                {"time_us", row.time_s * 1e6},
                {"algbw_GBps", row.algorithm_bandwidth() * 1e-9},
                {"busbw_GBps", row.bus_bandwidth() * 1e-9},
                {"wrong", row.wrong},
                {"in_place", row.in_place},
                {"reduction", name(row.shape.reduction)},
                {"root", row.shape.root},
                {"ranks", row.ranks},
                {"hosts", row.hosts},
                {"skew_us", row.skew_s < 0 ? json(nullptr) : json(row.skew_s * 1e6)}};
  entry["predicted_us"] = nullptr;
  entry["bound_by"] = nullptr;
  if (link) {
    const measure::Account account = measure::account(row, *link);
    entry["predicted_us"] = account.predicted_s() * 1e6;
    entry["bound_by"] = account.bound_by;
  }
  entry["copy_fraction"] = number_or_null(copy_fraction(result, row));
  return entry;
}

json to_json(const cost::Link& link) {
  return {{"alpha_us", link.start_up_s * 1e6}, {"bandwidth_GBps", link.bandwidth_bytes_per_s * 1e-9}};
}

template <class Value, size_t N>
Value value_named(const std::string& text, const Value (&values)[N], std::string_view (*name_of)(Value)) {
  for (const Value value : values) {
    if (name_of(value) == text) return value;
  }
  throw InternalError(lockstep::text("no value is named ", text));
}

Row row_from_json(const json& entry) {
  using comm::DataType;
  using comm::Operation;
  using comm::Reduction;
  constexpr Operation kOperations[] = {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
                                       Operation::broadcast,  Operation::reduce,         Operation::scatter,
                                       Operation::gather,     Operation::all_to_all,     Operation::send};
  constexpr DataType kTypes[] = {DataType::f32, DataType::f64, DataType::bf16, DataType::f16,
                                 DataType::i32, DataType::i64, DataType::u8};
  constexpr Reduction kReductions[] = {Reduction::sum, Reduction::average, Reduction::min, Reduction::max};
  Row row;
  row.shape = {.operation = value_named(entry.at("op"), kOperations, measure::name_of),
               .type = value_named<DataType>(entry.at("dtype"), kTypes, comm::name),
               .reduction = value_named<Reduction>(entry.at("reduction"), kReductions, comm::name),
               .root = entry.at("root"),
               .count = entry.at("count")};
  row.backend = entry.at("backend");
  row.algorithm = entry.at("algorithm");
  row.in_place = entry.at("in_place");
  row.ranks = entry.at("ranks");
  row.hosts = entry.at("hosts");
  row.bytes = entry.at("bytes");
  row.time_s = entry.at("time_us").get<double>() * 1e-6;
  row.skew_s = entry.at("skew_us").is_null() ? -1 : entry.at("skew_us").get<double>() * 1e-6;
  row.wrong = entry.at("wrong");
  return row;
}

void print_times(const Row& row) {
  std::printf(" %9.2f %6.2f %6.2f %5lld", row.time_s * 1e6, row.algorithm_bandwidth() * 1e-9,
              row.bus_bandwidth() * 1e-9, static_cast<long long>(row.wrong));
}

// "all_reduce(sum) of f32, 2 ranks, shared_memory"
std::string heading_of(const Row& row) {
  std::string result(measure::name_of(row.shape.operation));
  if (comm::reduces(row.shape.operation)) result += text("(", name(row.shape.reduction), ")");
  result += text(" of ", name(row.shape.type), ", ", row.ranks, row.ranks == 1 ? " rank, " : " ranks, ");
  if (comm::has_root(row.shape.operation)) result += text("root ", row.shape.root, ", ");
  return result + row.backend;
}

void print_account(const BenchResult& result, const Row& row, const cost::Link& link) {
  const measure::Account account = measure::account(row, link);
  const std::optional<double> share = copy_fraction(result, row);
  std::printf("%11lld %-15s %10.2f %10.2f %9.2f %9.2f %8s %-9s %6s\n", static_cast<long long>(row.bytes),
              row.algorithm.c_str(), row.time_s * 1e6, account.predicted_s() * 1e6, account.start_up_s * 1e6,
              account.bandwidth_s * 1e6, row.skew_s < 0 ? "" : text(std::round(row.skew_s * 1e8) / 100).c_str(),
              std::string(account.bound_by).c_str(), share ? text(std::lround(*share * 100), " %").c_str() : "");
}

}  // namespace

json to_json(const BenchResult& result) {
  const std::vector<FittedSeries> all = fitted(result.rows);
  json rows = json::array(), fits = json::array();
  for (const Row& row : result.rows) rows.push_back(to_json(result, row, series_of(all, row).link));
  json fit = nullptr;
  for (const FittedSeries& each : all) {
    const Row& first = each.rows.front();
    if (!each.link) continue;
    json entry = to_json(*each.link);
    if (fit.is_null() && is_main(first)) fit = entry;
    entry.update({{"op", measure::name_of(first.shape.operation)},
                  {"backend", first.backend},
                  {"algorithm", first.algorithm},
                  {"in_place", first.in_place}});
    fits.push_back(entry);
  }
  json document = {{"rows", rows}, {"fit", fit}, {"fits", fits}};
  for (const auto& [backend, bytes_per_s] : result.copy_bytes_per_s)
    document["copy_GBps"][backend] = bytes_per_s * 1e-9;
  if (!result.table.empty()) document["table"] = result.table;
  return document;
}

void add_from_json(BenchResult& result, const json& document) {
  for (const json& entry : document.at("rows")) result.rows.push_back(row_from_json(entry));
  if (document.contains("copy_GBps")) {
    for (const auto& [backend, value] : document.at("copy_GBps").items()) {
      result.copy_bytes_per_s[backend] = value.get<double>() * 1e9;
    }
  }
  if (document.contains("table")) result.table += document.at("table").get<std::string>();
}

void RowPrinter::operator()(const Row& row) {
  if (!of_size_.empty() && (of_size_.back().bytes != row.bytes || of_size_.back().algorithm != row.algorithm)) {
    of_size_.clear();
  }
  of_size_.push_back(row);
  if (!row.in_place && row.shape.operation != comm::Operation::send) return;  // its second half follows
  if (heading_ != heading_of(row)) {
    heading_ = heading_of(row);
    std::printf("\n%s\n%68s%30s\n", heading_.c_str(), "out of place ---------", "in place ---------");
    std::printf("%11s %10s %-15s %9s %6s %6s %5s %9s %6s %6s %5s\n", "bytes", "count", "algorithm", "time us", "algbw",
                "busbw", "wrong", "time us", "algbw", "busbw", "wrong");
  }
  std::printf("%11lld %10lld %-15s", static_cast<long long>(row.bytes), static_cast<long long>(row.shape.count),
              row.algorithm.c_str());
  if (of_size_.front().in_place) std::printf("%30s", "");
  for (const Row& each : of_size_) print_times(each);
  std::printf("\n");
  std::fflush(stdout);
  of_size_.clear();
}

void print_accounts(const BenchResult& result) {
  for (const FittedSeries& each : fitted(result.rows)) {
    const Row& first = each.rows.front();
    if (!is_main(first) || !each.link) continue;
    std::printf("\n%s, %s: start-up %.2f us a message, %.2f GB/s\n", heading_of(first).c_str(), first.algorithm.c_str(),
                each.link->start_up_s * 1e6, each.link->bandwidth_bytes_per_s * 1e-9);
    std::printf("%11s %-15s %10s %10s %9s %9s %8s %-9s %6s\n", "bytes", "algorithm", "us", "predicted", "start-up",
                "bandwidth", "skew", "bound by", "of copy");
    for (const Row& row : each.rows) print_account(result, row, *each.link);
  }
  for (const auto& [backend, bytes_per_s] : result.copy_bytes_per_s) {
    std::printf(
        "\n%s: streaming copies by all ranks move %.1f GB/s; \"of copy\" is what an all_reduce must read and\n"
        "write, 2 p S bytes, over its time and that\n",
        backend.c_str(), bytes_per_s * 1e-9);
  }
  std::fflush(stdout);
}

}  // namespace lockstep::cli
