// What bench collectives found, as tables for people and as one JSON document, which is also how ranks hand it to the
// process that started them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/measure/account.h"

namespace lockstep::cli {

struct BenchResult {
  std::vector<measure::Row> rows;
  std::map<std::string, double> copy_bytes_per_s;  // by backend; of runs with a long all_reduce on one host
  std::string table;                               // of algorithms, from --tune
};

// From where on an all_reduce is held against the machine's copies: what is shorter stays in the caches.
inline constexpr int64_t kLongBytes = 4 << 20;

nlohmann::ordered_json to_json(const BenchResult& result);
// Adds what a document of to_json holds; what follows from the rows is left out and made again.
void add_from_json(BenchResult& result, const nlohmann::ordered_json& document);

// Prints each size's times when its last row comes.
class RowPrinter {
 public:
  void operator()(const measure::Row& row);

 private:
  std::string heading_;
  std::vector<measure::Row> of_size_;
};

// Predicted beside measured, and what binds each size.
void print_accounts(const BenchResult& result);

}  // namespace lockstep::cli
