// What `lockstep schedule` says of one schedule: as JSON, for people, or as a row among others.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/validate.h"
#include "lockstep/simulate/draw.h"
#include "lockstep/simulate/simulate.h"

namespace lockstep::cli {

struct ScheduleReport {
  std::string title;      // the kind, or the file
  schedule::Shape shape;  // asked for, of a kind
  schedule::Table table;  // empty: the kind does not make it
  schedule::Rules rules;
  std::vector<Problem> problems;
  simulate::TransferMode mode = simulate::TransferMode::async;
  simulate::Simulation simulation;  // empty when there are problems
  int64_t activation_bytes = 0;     // of a micro-batch on a whole rank; 0: not asked for
};

nlohmann::ordered_json to_json(const ScheduleReport& report);
void print(const ScheduleReport& report, double cell);  // cell 0: the shortest action, and no drawing that is too long
void print_table(const std::vector<ScheduleReport>& reports);

}  // namespace lockstep::cli
