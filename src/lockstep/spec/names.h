// How the values of enums are spelt in configurations.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/spec/plan.h"

namespace lockstep::spec {

template <class Enum>
using Names = std::vector<std::pair<std::string_view, Enum>>;

// Every value with its name.
const Names<Norm>& names_of(Norm);
const Names<Activation>& names_of(Activation);
const Names<Position>& names_of(Position);
const Names<DataFormat>& names_of(DataFormat);
const Names<Precision>& names_of(Precision);
const Names<GradientDtype>& names_of(GradientDtype);
const Names<OptimizerKind>& names_of(OptimizerKind);
const Names<Decay>& names_of(Decay);
const Names<Reduction>& names_of(Reduction);
const Names<Recompute>& names_of(Recompute);
const Names<Gather>& names_of(Gather);
const Names<GradientReduction>& names_of(GradientReduction);
const Names<DeviceChoice>& names_of(DeviceChoice);

template <class Enum>
std::string_view name(Enum value) {
  for (const auto& [name, candidate] : names_of(value)) {
    if (candidate == value) return name;
  }
  LOCKSTEP_CHECK(false, "an enum value without a name: ", static_cast<int>(value));
}

template <class Enum>
std::optional<Enum> from_name(std::string_view name) {
  for (const auto& [candidate, value] : names_of(Enum{})) {
    if (candidate == name) return value;
  }
  return std::nullopt;
}

template <class Enum>
std::vector<std::string_view> spellings() {
  std::vector<std::string_view> result;
  for (const auto& [name, value] : names_of(Enum{})) result.push_back(name);
  return result;
}

}  // namespace lockstep::spec
