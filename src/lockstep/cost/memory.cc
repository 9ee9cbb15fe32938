#include "lockstep/cost/memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/spec/microbatches.h"
#include "lockstep/spec/placement.h"

namespace lockstep::cost {
namespace {

constexpr double kFirstBucketBytes = 1 << 20;

StateTypes types_of(const spec::TrainSpec& train) {
  const double moments = train.optimizer == spec::OptimizerKind::adamw ? 2 : (train.momentum > 0 ? 1 : 0);
  if (spec::is_low(train.precision)) {
    return {2, train.gradient_dtype == spec::GradientDtype::fp32 ? 4.0 : 2.0, 4 + moments * 4};
  }
  const double width = train.precision == spec::Precision::fp64 ? 8 : 4;
  return {width, width, moments * width};
}

struct Held {
  std::string name;
  double elements;
};

double sum(const std::vector<Held>& held) {
  return std::accumulate(held.begin(), held.end(), 0.0,
                         [](double total, const Held& parameter) { return total + parameter.elements; });
}

// Elements that a rank holds of each parameter, without ZeRO, in the model's order: of the pipeline rank with most.
std::vector<Held> held_parameters(const spec::RunPlan& plan, int64_t data_ranks) {
  const int ranks = static_cast<int>(data_ranks * plan.parallel.tensor * plan.parallel.pipeline);
  const mesh::Mesh mesh = spec::make_mesh(plan.parallel, ranks);
  const mesh::Axis pipeline[] = {mesh::Axis::pipeline};
  std::vector<Held> most;
  for (const int rank : mesh.peers(0, pipeline)) {
    std::vector<Held> held;
    for (const auto& parameter : spec::parameters_on_rank(spec::parameters(plan.model), plan, mesh, rank)) {
      double elements = 1;
      for (const int64_t size : spec::place_on_rank(parameter, plan, mesh, rank).shape) {
        elements *= static_cast<double>(size);
      }
      held.push_back({parameter.name, elements});
    }
    if (sum(held) > sum(most)) most = std::move(held);
  }
  return most;
}

// Elements of what stage 3 gathers at once, in the order of the forward pass: a part, or parts that share a parameter.
std::vector<double> unit_counts(const spec::ModelSpec& model, const std::vector<Held>& held) {
  std::map<std::string, size_t> unit_of_parameter;
  std::map<std::string, double> count;
  for (const auto& [name, elements] : held) count[name] = elements;
  std::vector<double> units;
  for (const spec::ModelPart& part : spec::parts(model)) {
    if (std::ranges::none_of(part.parameters, [&](const std::string& name) { return count.contains(name); })) continue;
    size_t unit = units.size();
    for (const std::string& name : part.parameters) {
      if (const auto found = unit_of_parameter.find(name); found != unit_of_parameter.end()) unit = found->second;
    }
    if (unit == units.size()) units.push_back(0);
    for (const std::string& name : part.parameters) {
      if (unit_of_parameter.emplace(name, unit).second) units[unit] += count[name];
    }
  }
  return units;
}

// Parameters of each bucket of stages 1 and 2, from the last parameter to the first.
std::vector<double> bucket_counts(const spec::RunPlan& plan, const std::vector<Held>& held, const StateTypes& types) {
  std::vector<double> buckets;
  const double width = types.weight, limit = plan.parallel.bucket_mb * (1 << 20) * width / types.gradient;
  for (auto parameter = held.rbegin(); parameter != held.rend(); ++parameter) {
    const double full = buckets.size() == 1 ? std::min(limit, kFirstBucketBytes) : limit;
    if (buckets.empty() || buckets.back() * width >= full) buckets.push_back(0);
    buckets.back() += parameter->elements;
  }
  return buckets;
}

// Memory of a pool from which flats of these sizes are lent in turn, two at once: a free one that is too small gives
// way.
double lent(const std::vector<double>& sizes) {
  std::vector<double> free, under_way;
  double total = 0;
  for (int step = 0; step < 2; ++step) {
    for (const double size : sizes) {
      if (under_way.size() == 2) {
        free.push_back(under_way.front());
        under_way.erase(under_way.begin());
      }
      std::ranges::sort(free);
      auto fits = std::ranges::find_if(free, [&](double bytes) { return bytes >= size; });
      double taken = size;
      if (fits != free.end()) {
        taken = *fits;
        free.erase(fits);
      } else {
        if (!free.empty()) {
          total -= free.front();
          free.erase(free.begin());
        }
        total += size;
      }
      under_way.push_back(taken);
    }
    free.insert(free.end(), under_way.begin(), under_way.end());
    under_way.clear();
  }
  return total;
}

int64_t microbatches_per_rank(const spec::RunPlan& plan, int64_t data_ranks) {
  return spec::microbatches_of_rank(spec::num_microbatches(plan.train), {0, static_cast<int>(data_ranks)}).size;
}

}  // namespace

StateBytes state_bytes(double parameters, const StateTypes& types, int64_t stage, double ranks) {
  return {parameters * types.weight / (stage >= 3 ? ranks : 1), parameters * types.gradient / (stage >= 2 ? ranks : 1),
          parameters * types.optimizer / (stage >= 1 ? ranks : 1)};
}

MemoryLedger memory_ledger(const spec::RunPlan& plan, int64_t data_ranks) {
  const spec::ParallelSpec& parallel = plan.parallel;
  const StateTypes types = types_of(plan.train);
  const std::vector<Held> held = held_parameters(plan, data_ranks);
  const double parameters = sum(held);
  const int64_t ranks = parallel.zero_group == 0 ? data_ranks : parallel.zero_group;
  MemoryLedger ledger{.states = state_bytes(parameters, types, parallel.zero, static_cast<double>(ranks))};
  std::vector<double> flats;
  if (parallel.zero == 3) {
    const std::vector<double> units = unit_counts(plan.model, held);
    ledger.gathered = types.weight *
                      (parallel.gather == spec::Gather::stage
                           ? parameters
                           : std::min<double>(2, static_cast<double>(units.size())) * *std::ranges::max_element(units));
    flats.assign(units.rbegin(), units.rend());
  } else if (parallel.zero == 2) {
    flats = bucket_counts(plan, held, types);
  }
  if (flats.empty()) return ledger;
  const bool holds =
      parallel.gradient_reduction == spec::GradientReduction::deferred && microbatches_per_rank(plan, data_ranks) > 1;
  if (holds || !parallel.overlap) {
    ledger.held_gradients = types.gradient * parameters;
  } else {
    ledger.flats = types.gradient * lent(flats);
  }
  return ledger;
}

double elements_sent(const spec::RunPlan& plan, int64_t data_ranks) {
  const spec::ParallelSpec& parallel = plan.parallel;
  const std::vector<Held> held = held_parameters(plan, data_ranks);
  const double parameters = sum(held);
  const auto others = [](double ranks) { return (ranks - 1) / ranks; };
  const auto ranks = static_cast<double>(data_ranks);
  if (parallel.zero == 0) return 2 * parameters * others(ranks);

  const double group = parallel.zero_group == 0 ? ranks : static_cast<double>(parallel.zero_group);
  const auto microbatches = static_cast<double>(microbatches_per_rank(plan, data_ranks));
  double gathered = parameters;
  if (parallel.zero == 3 && parallel.gather == spec::Gather::layer) {
    const std::vector<double> units = unit_counts(plan.model, held);
    const double not_again = plan.model.tie_embeddings ? 0 : units.front() + units.back();
    gathered = microbatches * (2 * parameters - not_again);
  }
  const bool immediate = parallel.gradient_reduction == spec::GradientReduction::immediate;
  const double reduced = parameters * (immediate ? microbatches : 1);
  return (gathered + reduced) * others(group) + 2 * parameters / group * others(ranks / group);
}

}  // namespace lockstep::cost
