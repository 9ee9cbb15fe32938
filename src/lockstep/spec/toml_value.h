// Values as TOML writes them: in configurations that we write and in messages about those that we read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/mesh/mesh.h"
#include "lockstep/spec/names.h"

namespace lockstep::spec {

std::string toml_value(int64_t value);
std::string toml_value(bool value);
std::string toml_value(double value);  // the shortest digits that read back as the same number, and as a float: "1.0"
std::string toml_value(const std::string& value);
std::string toml_value(const std::vector<std::string>& value);
std::string toml_value(const std::array<double, 2>& value);
std::string toml_value(const mesh::Order& order);
std::string toml_value(const std::map<std::string, std::string>& value);  // an inline table

template <class Enum>
  requires std::is_enum_v<Enum>
std::string toml_value(Enum value) {
  return toml_value(std::string(name(value)));
}

}  // namespace lockstep::spec
