#include "lockstep/parallel/zero/units.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace lockstep::parallel {

std::vector<ShardedUnit> units_of(const torch::nn::Module& module, const std::vector<std::string>& names,
                                  const std::function<bool(const std::string&, const at::Tensor&)>& decay) {
  std::vector<ShardedUnit> units;
  const auto modules = module.named_modules("", /*include_self=*/false);
  for (const std::string& name : names) {
    if (!name.empty() && !modules.contains(name)) {
      throw InvalidArgument(text("ShardedDataParallel: options.units has \"", name, "\", which is no block of ",
                                 module.name(), "; the names are those of named_modules()"));
    }
    units.push_back({name, {}});
  }
  for (const auto& item : module.named_parameters()) {
    const auto unit = std::ranges::find_if(units, [&](const ShardedUnit& candidate) {
      return candidate.name.empty() || item.key().starts_with(candidate.name + ".");
    });
    if (unit == units.end()) {
      throw InvalidArgument(text("ShardedDataParallel: parameter ", item.key(),
                                 " is in no unit of stage 3; add its block to options.units (nearest: stage 2)"));
    }
    unit->parameters.push_back({item.key(), item.value(), !decay || decay(item.key(), item.value())});
  }
  return units;
}

UnitList::UnitList(const std::vector<ShardedUnit>& units) {
  std::vector<size_t> same_as(units.size());  // by listed unit: an earlier one that shares a parameter, or itself
  std::iota(same_as.begin(), same_as.end(), size_t{0});
  const auto first_of = [&](size_t unit) {
    while (same_as[unit] != unit) unit = same_as[unit];
    return unit;
  };
  struct Known {
    size_t index, unit;
  };
  std::unordered_map<at::TensorImpl*, Known> known;
  std::vector<size_t> listed_unit;  // by parameter
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const optim::Parameter& parameter : units[unit].parameters) {
      const auto [found, is_new] =
          known.try_emplace(parameter.tensor.unsafeGetTensorImpl(), Known{tensors.size(), unit});
      if (is_new) {
        tensors.push_back(parameter.tensor);
        names.push_back(parameter.name);
        decay.push_back(parameter.decay);
        listed_unit.push_back(unit);
      } else {
        const size_t a = first_of(found->second.unit), b = first_of(unit);
        same_as[std::max(a, b)] = std::min(a, b);
      }
    }
  }
  std::map<size_t, size_t> number;  // of the units that remain
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [found, is_new] = number.try_emplace(first_of(listed_unit[i]), parameters_of_unit.size());
    if (is_new) parameters_of_unit.emplace_back();
    parameters_of_unit[found->second].push_back(i);
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const auto found = number.find(first_of(unit));
    unit_of_name[units[unit].name] = found == number.end() ? kNone : found->second;
  }
}

}  // namespace lockstep::parallel
