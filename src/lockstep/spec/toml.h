// RunPlans as TOML files, in and out.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/spec/plan.h"

namespace lockstep::spec {

// Reads a configuration. A preset comes first and the single fields override it; `overrides` ("section.key=value", the
// value TOML if it parses as TOML, else a string) override the file. Types and names are checked here, rules that tie
// values together in `validate`.
//   throws   InvalidArgument with every mistake on one line, each with its place, field, value, what is expected and
//   the
//            nearest name; Unsupported when all of them are keys or values that a later version brings
RunPlan read_plan(const std::filesystem::path& file, std::span<const std::string> overrides = {});

// The same for a text; `source` is its name in messages.
RunPlan parse_plan(std::string_view text, std::string_view source, std::span<const std::string> overrides = {});

// Every key with its value and, as a comment, its meaning: read_plan gives back the same plan, number for number.
std::string to_toml(const RunPlan& plan);

struct FieldHelp {
  std::string key;  // "train.lr"
  std::string default_value;
  std::string meaning;
};
std::vector<FieldHelp> configuration_help();

}  // namespace lockstep::spec
