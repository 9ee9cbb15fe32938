// Reads the golden data, and runs a case as its conventions say.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "lockstep/schedule/generators.h"
#include "lockstep/simulate/analysis.h"
#include "lockstep/simulate/simulate.h"

namespace lockstep::golden {

using nlohmann::json;

inline std::string read(const std::string& file) {
  std::ostringstream content;
  content << std::ifstream(LOCKSTEP_GOLDEN + file).rdbuf();
  if (content.str().empty()) throw std::runtime_error("cannot read " + file);
  return content.str();
}

inline const json& schedules() {
  static const json document = json::parse(read("schedules.json"));
  return document;
}

// One number or a list.
inline std::vector<double> numbers(const json& value) {
  return value.is_array() ? value.get<std::vector<double>>() : std::vector{value.get<double>()};
}

inline simulate::Costs costs(const json& inputs, int stages) {
  simulate::StageTimes times{.forward = numbers(inputs.at("t_f")), .backward = numbers(inputs.at("t_b"))};
  if (inputs.contains("t_i")) {
    times.input_grad = numbers(inputs.at("t_i"));
    times.weight_grad = numbers(inputs.at("t_w"));
  }
  return {.duration = simulate::per_stage(times, stages),
          .transfer = inputs.at("c"),
          .mode = inputs.at("transfer") == "link" ? simulate::TransferMode::link : simulate::TransferMode::async};
}

// "0F0 0F1 ...": the golden form of a rank's list.
inline std::vector<std::string> order(const schedule::Table& table) {
  std::vector<std::string> lines;
  for (const auto& actions : table.actions_by_rank) {
    std::vector<std::string> words;
    for (const schedule::Action& action : actions) words.push_back(to_string(action));
    lines.push_back(join(words, " "));
  }
  return lines;
}

inline schedule::Table table_of_order(const json& lines) {
  std::string csv;
  for (std::string line : lines) {
    std::ranges::replace(line, ' ', ',');
    csv += line + "\n";
  }
  return schedule::parse_table(csv);
}

inline bool is_near(double value, double expected) {
  return std::abs(value - expected) <= 1e-9 * std::max(std::abs(expected), 1e-3);
}

}  // namespace lockstep::golden
