// The options of bench collectives, as given and as checked.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/measure/timing.h"

namespace lockstep::cli {

struct BenchOptions {
  std::string operations = "all_reduce", min = "4", max = "64M", dtype = "f32", reduction = "sum", backends;
  std::string algorithm = "auto", show, output;
  int64_t factor = 4;
  int ranks = 2, root = 0, calls = 0, warm_up = 5;
  bool tune = false, json = false;
  std::string record, rank_backend;  // for rank processes: where rank 0 leaves the result, and what to join
};

void add_options(CLI::App& command, const std::shared_ptr<BenchOptions>& options);

// What the options ask for.
struct BenchPlan {
  std::vector<measure::Series> series;  // by operation
  std::vector<std::string> backends;
};

// Checks everything that can be checked before a rank starts.
//   throws   InvalidArgument
BenchPlan plan_of(const BenchOptions& options);

}  // namespace lockstep::cli
