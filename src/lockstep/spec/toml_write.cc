#include <iomanip>
#include <sstream>

#include "lockstep/spec/fields.h"
#include "lockstep/spec/toml.h"
#include "lockstep/spec/toml_value.h"

namespace lockstep::spec {

std::string to_toml(const RunPlan& plan) {
  std::ostringstream out;
  std::string current;
  for_each_field(plan, [&](const char* section, const char* key, const auto& value, const char* meaning) {
    if (section != current) out << (current.empty() ? "[" : "\n[") << section << "]\n";
    current = section;
    out << std::left << std::setw(36) << text(key, " = ", toml_value(value)) << " # " << meaning << "\n";
  });
  return out.str();
}

std::vector<FieldHelp> configuration_help() {
  std::vector<FieldHelp> result;
  const RunPlan plan;
  for_each_field(plan, [&](const char* section, const char* key, const auto& value, const char* meaning) {
    result.push_back({text(section, ".", key), toml_value(value), meaning});
  });
  return result;
}

}  // namespace lockstep::spec
