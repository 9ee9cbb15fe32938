// What stage 3 gathers together: the parameters of a block.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::parallel {

// A parameter may be in several units, as tied ones are; they are then one.
struct ShardedUnit {
  std::string name;
  std::vector<optim::Parameter> parameters;
};

// A module's parameters by the children whose names (dotted for grandchildren) are given. The name "" takes all.
//   decay    whether weight decay applies to a parameter; null: to all
//   throws   InvalidArgument for a name that is no module, and for a parameter in none of them
std::vector<ShardedUnit> units_of(const torch::nn::Module& module, const std::vector<std::string>& names,
                                  const std::function<bool(const std::string&, const at::Tensor&)>& decay);

// The same, with every parameter once.
struct UnitList {
  explicit UnitList(const std::vector<ShardedUnit>& units);

  std::vector<at::Tensor> tensors;  // the parameters, in the order of the units
  std::vector<std::string> names;
  std::vector<bool> decay;
  std::vector<std::vector<size_t>> parameters_of_unit;  // by unit, indices into the lists above; none is empty
  static constexpr size_t kNone = ~size_t{0};
  std::map<std::string, size_t> unit_of_name;  // kNone: a block without parameters
};

}  // namespace lockstep::parallel
