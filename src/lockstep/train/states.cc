#include "lockstep/train/states.h"

#include <torch/torch.h>

#include <algorithm>
#include <list>
#include <map>

#include "lockstep/distributed/collectives.h"
#include "lockstep/optim/clip.h"
#include "lockstep/parallel/data/data_parallel.h"
#include "lockstep/parallel/zero/sharded_data_parallel.h"
#include "lockstep/train/gradient_sets.h"

namespace lockstep::train {
namespace {

int64_t bucket_bytes(const spec::ParallelSpec& parallel) {
  return static_cast<int64_t>(parallel.bucket_mb * (1 << 20));
}

bool is_fixed(const spec::RunPlan& plan) {
  return plan.parallel.reduction == spec::Reduction::fixed_tree;
}

parallel::BackwardOf made_by(const schedule::Action& action) {
  using Kind = schedule::Action::Kind;
  using Half = parallel::BackwardOf::Half;
  const Half half = action.kind == Kind::backward     ? Half::both
                    : action.kind == Kind::input_grad ? Half::first
                                                      : Half::second;
  return {.microbatch = action.microbatch, .part = action.stage, .half = half};
}

bool leaves_with(const GradientSet& set, const schedule::Action& action) {
  return std::ranges::find(set.last_backwards, action) != set.last_backwards.end();
}

// -- whole on every rank ---------------------------------------------------------------------------------------------

class Replicated final : public States {
 public:
  explicit Replicated(const StatesContext& context)
      : context_(context),
        masters_(context.built.masters),
        master_weights_(tie(context.built)),
        optimizer_(optim::make_optimizer(context.plan.train, master_weights_.masters())),
        sets_(gradient_sets(context.places, context.actions, context.world, context.data_group)) {
    const spec::ParallelSpec& parallel = context.plan.parallel;
    const std::vector<nn::Parameter>& parameters = context.built.model->parameter_list();
    for (const GradientSet& set : sets_) {
      std::vector<parallel::NamedTensor> named;
      for (const size_t i : set.parameters) named.push_back({parameters[i].spec.name, parameters[i].tensor});
      reducers_.emplace_back(
          std::move(named), *set.group,
          parallel::DataParallelOptions{.reduction = comm::Reduction::sum,  // losses are divided by the global count
                                        .gradient_type = gradient_type(context.plan.train),
                                        .bucket_bytes = bucket_bytes(parallel),
                                        .overlap = parallel.overlap,
                                        .fixed_tree = is_fixed(context.plan),
                                        .finish_in_backward = false});
    }
  }

  void zero_grad() override {
    for (parallel::DataParallel& reducer : reducers_) reducer.zero_grad();
    master_weights_.drop_gradients();
  }

  void backward(const schedule::Action& action, const std::function<void()>& run) override {
    std::list<parallel::DataParallel::NoSync> local_only;
    auto set = sets_.begin();
    for (parallel::DataParallel& reducer : reducers_) {
      if (!leaves_with(*set++, action)) local_only.emplace_back(reducer);
      reducer.next_backward_is(made_by(action));
    }
    run();
  }

  void finish(int stage) override {
    auto set = sets_.begin();
    for (parallel::DataParallel& reducer : reducers_) {
      if ((set++)->finished_with == stage) reducer.finish();
    }
  }

  void add_tied() override {
    for (const GradientSet& set : sets_) {
      if (set.tied_group == nullptr) continue;
      for (const size_t i : set.parameters) {
        const nn::Parameter& parameter = context_.built.model->parameter_list()[i];
        LOCKSTEP_CHECK(parameter.tensor.grad().defined(), parameter.spec.name);
        all_reduce(parameter.tensor.mutable_grad(), *set.tied_group, Reduction::sum, {.tag = "tied gradient"});
      }
    }
  }

  void unscale(double factor) override {
    master_weights_.take_gradients();
    scale(factor);
  }

  double squared_gradient_norm() override {
    std::map<std::string, at::Tensor> counted;
    for (size_t i = 0; i < masters_.size(); ++i) {
      if (context_.places[i].counted_in_norm) counted[masters_[i].spec.name] = masters_[i].tensor.grad();
    }
    std::vector<at::Tensor> of_model;
    for (const spec::ParameterSpec& parameter : spec::parameters(context_.plan.model)) {
      if (parameter.tied_to.empty()) of_model.push_back(counted[parameter.name]);
    }
    return is_fixed(context_.plan) ? optim::order_free_squared_norm(of_model, &context_.model_group)
                                   : optim::squared_norm_over_ranks(of_model, context_.model_group);
  }

  void update(double lr, double gradient_scale) override {
    scale(gradient_scale);
    optimizer_->step(lr);
    master_weights_.publish();
    master_weights_.drop_gradients();
  }

  std::string first_not_finite() override {
    for (const nn::Parameter& parameter : masters_) {
      const at::Tensor& gradient = parameter.tensor.grad();
      if (gradient.defined() && !gradient.isfinite().all().item<bool>()) return parameter.spec.name;
    }
    return "";
  }

  std::vector<NamedTensor> gradients() override { return copy_gradients(masters_); }
  std::vector<NamedTensor> optimizer_state() override { return copy_state(*optimizer_); }
  std::vector<NamedTensor> weights(bool /*to_save*/) override {
    std::vector<NamedTensor> result;
    for (const auto& master : masters_) result.push_back({master.spec.name, master.tensor.detach()});
    return result;
  }

 private:
  void scale(double factor) {
    std::vector<at::Tensor> gradients;
    for (const nn::Parameter& master : masters_) gradients.push_back(master.tensor.grad());
    optim::scale(gradients, factor);
  }

  const StatesContext context_;
  const std::vector<nn::Parameter>& masters_;
  optim::MasterWeights master_weights_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<GradientSet> sets_;
  std::list<parallel::DataParallel> reducers_;  // one per set
};

// -- sharded ---------------------------------------------------------------------------------------------------------

// The model's parts, each with those of its parameters that are in the set.
std::vector<parallel::ShardedUnit> units_of(const nn::Transformer& model, const GradientSet& set) {
  std::map<std::string, const nn::Parameter*> by_name;
  for (const size_t i : set.parameters) {
    const nn::Parameter& parameter = model.parameter_list()[i];
    by_name[parameter.spec.name] = &parameter;
  }
  std::vector<parallel::ShardedUnit> units;
  for (const spec::ModelPart& part : spec::parts(model.model())) {
    parallel::ShardedUnit& unit = units.emplace_back(parallel::ShardedUnit{part.name, {}});
    for (const std::string& name : part.parameters) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) continue;
      unit.parameters.push_back({name, found->second->tensor, found->second->spec.decay});
    }
  }
  return units;
}

class Sharded final : public States, public nn::PartSeam {
 public:
  explicit Sharded(const StatesContext& context)
      : context_(context), sets_(gradient_sets(context.places, context.actions, context.world, context.data_group)) {
    for (const GradientSet& set : sets_) {
      const auto make = [train = context.plan.train](std::vector<optim::Parameter> pieces) {
        return optim::make_optimizer(train, std::move(pieces));
      };
      sharded_.emplace_back(units_of(*context.built.model, set), *set.group, make, options_of(set));
    }
    if (spec::is_low(context.plan.train.precision)) context.built.masters.clear();  // each rank has its shards of them
  }

  void zero_grad() override {
    for (auto& sharded : sharded_) sharded.zero_grad();
  }

  void backward(const schedule::Action& action, const std::function<void()>& run) override {
    const bool immediate = context_.plan.parallel.gradient_reduction == spec::GradientReduction::immediate;
    std::list<parallel::ShardedDataParallel::NoSync> local_only;
    auto set = sets_.begin();
    for (auto& sharded : sharded_) {
      if (!leaves_with(*set++, action) && !immediate) local_only.emplace_back(sharded);
      sharded.next_backward_is(made_by(action));
    }
    run();
    if (!immediate || !schedule::completes_gradient(action.kind)) return;
    set = sets_.begin();
    for (auto& sharded : sharded_) {
      if (std::ranges::find(set->stages, action.stage) != set->stages.end() && !leaves_with(*set, action)) {
        sharded.finish();
      }
      ++set;
    }
  }

  // What several stages use is gathered for each use.
  void unshard(int stage) override {
    auto set = sets_.begin();
    for (auto& sharded : sharded_) {
      if ((set++)->stages == std::vector{stage}) sharded.unshard();
    }
  }
  void reshard(int stage) override {
    auto set = sets_.begin();
    for (auto& sharded : sharded_) {
      if ((set++)->stages == std::vector{stage}) sharded.reshard();
    }
  }

  void finish(int stage) override {
    auto set = sets_.begin();
    for (auto& sharded : sharded_) {
      if ((set++)->finished_with == stage) sharded.finish();
    }
  }

  void add_tied() override {
    auto set = sets_.begin();
    for (auto& sharded : sharded_) {
      if (set->tied_group != nullptr) sharded.add_gradients_over(*set->tied_group);
      ++set;
    }
  }

  void unscale(double factor) override {
    for (auto& sharded : sharded_) sharded.unscale(factor);
  }

  // A set whose ranks are also tensor ranks has added over them already: the first of them counts it.
  double squared_gradient_norm() override {
    if (is_fixed(context_.plan)) {
      std::vector<at::Tensor> counted;
      for (auto& sharded : sharded_) {
        for (const at::Tensor& piece : sharded.counted_gradient()) counted.push_back(piece);
      }
      return optim::order_free_squared_norm(counted, &context_.world);
    }
    double own = 0;
    size_t index = 0;
    for (auto& sharded : sharded_) {
      const double of_set = sharded.squared_norm();
      const GradientSet& set = sets_[index++];
      if (set.own_group == nullptr || context_.places[set.parameters.front()].counted_in_norm) own += of_set;
    }
    at::Tensor sum = at::full({1}, own, at::kDouble);
    all_reduce(sum, context_.model_group, Reduction::sum, {.tag = "gradient norm"});
    return sum.item<double>();
  }

  void update(double lr, double gradient_scale) override {
    for (auto& sharded : sharded_) {
      sharded.scale_gradient(gradient_scale);
      sharded.step(lr);
    }
  }

  std::string first_not_finite() override {
    std::string first;
    for (auto& sharded : sharded_) {
      const std::string name = sharded.first_not_finite();
      if (first.empty()) first = name;
    }
    return first;
  }

  nn::PartSeam* parts() override { return this; }
  at::Tensor run(std::string_view part, const at::Tensor& input,
                 const std::function<at::Tensor(const at::Tensor&)>& forward) override {
    std::function<at::Tensor(const at::Tensor&)> around = forward;
    for (auto& sharded : sharded_) {
      around = [&sharded, part, inner = std::move(around)](const at::Tensor& in) {
        return sharded.run(std::string(part), in, inner,
                           {.keep = part == "head", .parameters_in_backward = part != "embed"});
      };
    }
    return around(input);
  }

  std::vector<NamedTensor> gradients() override {
    return in_model_order([](auto& sharded) { return sharded.gradients(); });
  }
  std::vector<NamedTensor> optimizer_state() override {
    return in_model_order([](auto& sharded) { return sharded.state(); });
  }
  std::vector<NamedTensor> weights(bool to_save) override {
    // Tensor ranks go on to put their slices together: all of them need theirs.
    const bool first_alone = to_save && context_.tensor_group.size() == 1;
    return in_model_order(
        [&](auto& sharded) { return sharded.parameters(first_alone ? std::optional(0) : std::nullopt); });
  }

 private:
  parallel::ShardedDataParallelOptions options_of(const GradientSet& set) const {
    const spec::RunPlan& plan = context_.plan;
    const int others = set.group->size() / context_.data_group.size();  // tensor ranks in the set
    parallel::ShardedDataParallelOptions options{.stage = static_cast<int>(plan.parallel.zero),
                                                 .shard_ranks = static_cast<int>(plan.parallel.zero_group) * others,
                                                 .reduction = comm::Reduction::sum,
                                                 .gradient_type = gradient_type(plan.train),
                                                 .bucket_bytes = bytes_of_weights(plan),
                                                 .overlap = plan.parallel.overlap,
                                                 .fixed_tree = is_fixed(plan),
                                                 .keep_gathered = plan.parallel.gather == spec::Gather::stage,
                                                 .finish_in_backward = false};
    std::map<std::string, size_t> index_of;
    for (const size_t i : set.parameters) index_of[context_.built.model->parameter_list()[i].spec.name] = i;
    if (set.own_group == nullptr) {
      options.counted_in_norm = [this, index_of](const std::string& name) {
        return context_.places[index_of.at(name)].counted_in_norm;
      };
    }
    options.fill = [this, index_of](const std::string& name, const at::Tensor& values) {
      fill(index_of.at(name), values);
    };
    return options;
  }

  // Buckets are measured in gradients, which may be wider than their weights.
  static int64_t bytes_of_weights(const spec::RunPlan& plan) {
    const auto weight = static_cast<int64_t>(at::elementSize(scalar_type(plan.train.precision)));
    const auto gradient = static_cast<int64_t>(at::elementSize(gradient_type(plan.train)));
    return bucket_bytes(plan.parallel) * weight / gradient;
  }

  // What this rank begins with: what was loaded, or initial values, with zeros as padding.
  void fill(size_t index, const at::Tensor& values) const {
    if (!context_.plan.model.weights.empty()) {
      values.copy_(context_.built.masters[index].tensor.detach());
      return;
    }
    const auto& [spec, tensor, region] = context_.built.model->parameter_list()[index];
    values.zero_();
    at::Tensor slice = nn::without_padding(values, region);
    nn::fill_initial(slice, spec, static_cast<uint64_t>(context_.plan.train.seed), region.offset);
  }

  template <class Get>
  std::vector<NamedTensor> in_model_order(const Get& get) {
    std::map<std::string, std::vector<NamedTensor>> by_parameter;
    for (auto& sharded : sharded_) {
      for (auto& [name, tensor] : get(sharded)) {
        by_parameter[name.substr(0, name.find('/'))].push_back({name, tensor.detach()});
      }
    }
    std::vector<NamedTensor> result;
    for (const nn::Parameter& parameter : context_.built.model->parameter_list()) {
      for (NamedTensor& named : by_parameter[parameter.spec.name]) result.push_back(std::move(named));
    }
    return result;
  }

  const StatesContext context_;
  std::vector<GradientSet> sets_;
  std::list<parallel::ShardedDataParallel> sharded_;  // one per set
};

}  // namespace

Built build_for_states(const spec::RunPlan& plan, const std::vector<spec::ParameterSpec>& held,
                       const std::vector<spec::ParameterPlace>& places, at::Device device) {
  if (plan.parallel.zero == 0 || !plan.model.weights.empty()) return build(plan, held, places, device);
  const at::TensorOptions options = at::TensorOptions(device).dtype(scalar_type(plan.train.precision));
  std::vector<nn::Parameter> parameters;
  for (const spec::ParameterSpec& spec : held) {
    const spec::ParameterPlace& place = places.at(parameters.size());
    parameters.push_back({spec, parallel::without_memory(place.shape, options).requires_grad_(), place.region});
  }
  Built built;
  if (!spec::is_low(plan.train.precision)) built.masters = parameters;
  built.model = std::make_shared<nn::Transformer>(plan.model, std::move(parameters));
  return built;
}

std::unique_ptr<States> make_states(const StatesContext& context) {
  if (context.plan.parallel.zero == 0) return std::make_unique<Replicated>(context);
  return std::make_unique<Sharded>(context);
}

bool meets_in_each_microbatch(const spec::ParallelSpec& parallel) {
  return parallel.zero == 3 || parallel.gradient_reduction == spec::GradientReduction::immediate || parallel.chunks > 1;
}

}  // namespace lockstep::train
