#include "lockstep/parallel/zero/sharded_data_parallel.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/distributed/collectives.h"
#include "lockstep/optim/clip.h"

namespace lockstep::parallel {

using at::Tensor;

namespace {

void refuse(const ShardedDataParallelOptions& options) {
  if (options.stage < 1 || options.stage > 3) {
    throw InvalidArgument(text(
        "ShardedDataParallel: stage = ", options.stage,
        ": must be 1, 2 or 3; without sharding use DataParallel (nearest: ", std::clamp(options.stage, 1, 3), ")"));
  }
  if (options.reduction != comm::Reduction::average && options.reduction != comm::Reduction::sum) {
    throw InvalidArgument(text("ShardedDataParallel: reduction = ", comm::name(options.reduction),
                               ": gradients are reduced by average or sum (nearest: average)"));
  }
}

// The blocks that stage 3 gathers one by one; the stages before know only one.
std::vector<std::string> unit_names(const torch::nn::Module& module, const ShardedDataParallelOptions& options) {
  if (options.stage < 3) return {""};
  if (!options.units.empty()) return options.units;
  std::vector<std::string> names;
  if (dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr) {
    for (const auto& child : module.named_children()) names.push_back(child.key());
  }
  if (names.empty()) {
    throw InvalidArgument(
        "ShardedDataParallel: stage 3 gathers unit by unit: give a torch::nn::Sequential with children, or name the "
        "module's blocks in options.units and call them through run() (nearest: stage 2)");
  }
  return names;
}

}  // namespace

Tensor without_memory(at::IntArrayRef sizes, at::TensorOptions options) {
  const Tensor tensor = at::empty(sizes, options);
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  return tensor;
}

ShardedDataParallel::ShardedDataParallel(torch::nn::Module& module, comm::ProcessGroup& group,
                                         const MakeOptimizer& make_optimizer, ShardedDataParallelOptions options)
    : groups_(group, options.shard_ranks),
      options_(std::move(options)),
      module_(&module),
      units_(units_of(module, (refuse(options_), unit_names(module, options_)), options_.decay)) {
  broadcast_parameters(module, group);
  for (const auto& item : module.named_buffers()) module_buffers_.push_back(item.value());
  broadcast_tensors(module_buffers_, group);
  start(make_optimizer);
}

ShardedDataParallel::ShardedDataParallel(const std::vector<ShardedUnit>& units, comm::ProcessGroup& group,
                                         const MakeOptimizer& make_optimizer, ShardedDataParallelOptions options)
    : groups_(group, options.shard_ranks), options_(std::move(options)), units_(units) {
  refuse(options_);
  start(make_optimizer);
}

void ShardedDataParallel::start(const MakeOptimizer& make_optimizer) {
  make_flats();
  masters_ = std::make_unique<MasterShards>(units_.tensors, flats_, options_.master_weights);
  const auto values = [this](size_t parameter, const Tensor& home) { set_values(parameter, home); };
  if (options_.stage == 3) {
    gathered_ = std::make_unique<GatheredWeights>(
        units_.tensors, flats_, groups_,
        GatheredWeights::Options{.prefetch = options_.overlap, .keep = options_.keep_gathered, .set_values = values});
  } else {
    whole_weights_ = std::make_unique<WholeWeights>(units_.tensors, flats_, groups_, values);
  }
  gradients_ = std::make_unique<GradientShards>(units_.tensors, units_.names, flats_, groups_,
                                                GradientShards::Options{.keep_whole = options_.stage == 1,
                                                                        .reduction = options_.reduction,
                                                                        .overlap = options_.overlap,
                                                                        .fixed_tree = options_.fixed_tree,
                                                                        .gradient_type = options_.gradient_type,
                                                                        .arrivals = options_.arrivals});
  make_pieces(make_optimizer);
  used_.assign(units_.tensors.size(), false);
  for (size_t i = 0; i < units_.tensors.size(); ++i) {
    if (units_.tensors[i].requires_grad()) hooks_.emplace_back(units_.tensors[i], [this, i] { on_gradient(i); });
  }
}

// Backward runs through the units from the last to the first, and so do the flats.
void ShardedDataParallel::make_flats() {
  const mesh::Piece rank{groups_.shard().rank(), groups_.shard().size()};
  uses_.resize(units_.parameters_of_unit.size());
  if (options_.stage < 3) {
    std::vector<size_t> trained;
    for (size_t i = units_.tensors.size(); i-- > 0;) {
      if (units_.tensors[i].requires_grad()) trained.push_back(i);
    }
    flats_ = flats_of_buckets(units_.tensors, trained, options_.bucket_bytes, rank);
    return;
  }
  unit_of_parameter_.resize(units_.tensors.size());
  std::vector<std::string> name_of_unit(units_.parameters_of_unit.size());
  for (const auto& [name, unit] : units_.unit_of_name) {
    if (unit != UnitList::kNone) name_of_unit[unit] = name;
  }
  for (size_t unit = name_of_unit.size(); unit-- > 0;) {
    const std::vector<size_t>& parameters = units_.parameters_of_unit[unit];
    for (const size_t parameter : parameters) unit_of_parameter_[parameter] = unit;
    for (Flat& flat : flats_of_unit(units_.tensors, parameters, name_of_unit[unit], rank)) {
      flat.unit = unit;
      flats_.push_back(std::move(flat));
    }
  }
}

// Masters keep what rounding takes from the weights.
void ShardedDataParallel::set_values(size_t parameter, const Tensor& home) {
  const Tensor& old = units_.tensors[parameter];
  const bool has_masters = masters_->has(parameter), fills = options_.fill && old.requires_grad();
  Tensor values = fills ? home : old.detach();
  if (fills && has_masters) {
    values = view_like(old, at::empty({old.numel()}, at::TensorOptions(old.device()).dtype(at::kFloat)), 0);
  }
  if (fills) options_.fill(units_.names[parameter], values);
  if (!values.is_same(home)) home.copy_(values);
  if (has_masters) masters_->keep(parameter, fills ? values : home);
}

const Tensor& ShardedDataParallel::slice(size_t flat) const {
  return gathered_ != nullptr ? gathered_->slice(flat) : whole_weights_->slice(flat);
}

const Tensor& ShardedDataParallel::trained(size_t flat) const {
  return masters_->shard(flat).defined() ? masters_->shard(flat) : slice(flat);
}

void ShardedDataParallel::make_pieces(const MakeOptimizer& make_optimizer) {
  std::vector<optim::Parameter> parameters;
  for (size_t flat = 0; flat < flats_.size(); ++flat) {
    if (!flats_[flat].trained) continue;
    for (const Piece& piece : flats_[flat].pieces) {
      const Tensor tensor = trained(flat).narrow(0, piece.in_slice, piece.count);
      owned_.push_back({flat, piece, tensor});
      parameters.push_back({units_.names[piece.parameter], tensor, units_.decay[piece.parameter]});
    }
  }
  optimizer_ = make_optimizer(std::move(parameters));
  const auto type = flats_.empty() ? at::kFloat : trained(0).scalar_type();
  state_kinds_ = make_optimizer({{.name = "", .tensor = at::zeros({1}, type)}})->state();
}

// -- forward and backward --------------------------------------------------------------------------------------------

Tensor ShardedDataParallel::run(const std::string& name, const Tensor& input,
                                const std::function<Tensor(const Tensor&)>& forward, UseOptions options) {
  if (gathered_ == nullptr) return forward(input);
  const auto found = units_.unit_of_name.find(name);
  if (found == units_.unit_of_name.end())
    throw InvalidArgument(text("ShardedDataParallel::run: no unit \"", name, "\""));
  const size_t unit = found->second;
  if (unit == UnitList::kNone) return forward(input);

  const bool training = at::GradMode::is_enabled();
  gathered_->use(unit, training);
  Tensor x = input;
  const bool passes_gradient_on = training && input.requires_grad();
  if (passes_gradient_on) {
    x = input.alias();  // of its own, so that its hook runs before those of the unit that made `input`
    x.register_hook([this, unit](const Tensor&) { gathered_->release(unit); });
  }
  const auto& parameters = units_.parameters_of_unit[unit];
  const auto trained = [&](size_t i) { return units_.tensors[i].requires_grad(); };
  uses_[unit].gradients = uses_[unit].missing = static_cast<size_t>(std::ranges::count_if(parameters, trained));
  uses_[unit].releases =
      !passes_gradient_on && options.parameters_in_backward && uses_[unit].gradients == parameters.size();

  Tensor y = forward(x);
  const bool will_run_backward = training && y.requires_grad();
  if (will_run_backward && options.parameters_in_backward) {
    y.register_hook([this, unit](const Tensor&) { gathered_->use(unit, /*training=*/true); });
  }
  if (!will_run_backward || !options.keep) gathered_->release(unit);
  return y;
}

void ShardedDataParallel::unshard() {
  for (size_t unit = 0; gathered_ != nullptr && unit < gathered_->units(); ++unit) gathered_->hold(unit);
}

void ShardedDataParallel::reshard() {
  for (size_t unit = 0; gathered_ != nullptr && unit < gathered_->units(); ++unit) gathered_->let_go(unit);
}

Tensor ShardedDataParallel::forward(const Tensor& input) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(module_);
  if (sequential == nullptr) {
    throw Unsupported("ShardedDataParallel::forward: only of a torch::nn::Sequential; call blocks through run()");
  }
  Tensor x = input;
  const auto names = sequential->named_children().keys();
  for (size_t i = 0; i < names.size(); ++i) {
    torch::nn::AnyModule& child = *(sequential->begin() + static_cast<std::ptrdiff_t>(i));
    x = run(names[i], x, [&](const Tensor& in) { return child.forward(in); });
  }
  return x;
}

void ShardedDataParallel::on_gradient(size_t parameter) {
  if (gradient_ != Gradient::reduced) {
    throw Unsupported(text("ShardedDataParallel: ", units_.names[parameter],
                           " receives a gradient after the step's norm or update; call zero_grad() first"));
  }
  gradients_->arrived(parameter, !accumulate_only_);
  if (options_.fixed_tree || (!accumulate_only_ && options_.finish_in_backward)) {
    end_of_backward_.call([this] { end_of_backward(); });
  }
  if (gathered_ == nullptr) return;
  UnitUse& use = uses_[unit_of_parameter_[parameter]];
  if (--use.missing > 0) return;
  use.missing = use.gradients;
  if (use.releases) gathered_->release(unit_of_parameter_[parameter]);
}

void ShardedDataParallel::end_of_backward() {
  if (options_.fixed_tree) gradients_->end_backward(std::exchange(backward_, backward_.next()));
  if (!accumulate_only_ && options_.finish_in_backward) finish();
}

void ShardedDataParallel::finish() {
  backward_ = {};
  gradients_->finish();
  if (gathered_ != nullptr) gathered_->release_used();
}

// -- the step --------------------------------------------------------------------------------------------------------

void ShardedDataParallel::add_gradients_over(comm::ProcessGroup& holders) {
  LOCKSTEP_CHECK(gradient_ == Gradient::reduced, "gradients that are tied are added before their norm is taken");
  gradients_->add_over(holders, comm::Reduction::sum);
}

// The pieces that this rank updates get their gradients, in their own type.
void ShardedDataParallel::take_gradients() {
  if (gradient_ != Gradient::reduced) return;
  const torch::NoGradGuard no_grad;
  gradients_->add_replicas();
  for (const OwnedPiece& owned : owned_) {
    const Tensor shard = gradients_->shard(owned.flat).narrow(0, owned.piece.in_slice, owned.piece.count);
    owned.tensor.mutable_grad() = shard.to(owned.tensor.scalar_type());
  }
  gradient_ = Gradient::taken;
}

void ShardedDataParallel::unscale(double factor) {
  LOCKSTEP_CHECK(gradient_ < Gradient::agreed, "the norm is that of the unscaled gradient");
  take_gradients();
  scale_owned(factor);
}

// One all-reduce tells every rank the norm and which parameters some rank has used.
void ShardedDataParallel::agree() {
  if (gradient_ >= Gradient::agreed) return;
  take_gradients();
  const torch::NoGradGuard no_grad;
  std::vector<double> values{optim::squared_norm(counted_pieces())};
  for (const bool contributed : gradients_->contributed()) values.push_back(contributed ? 1 : 0);
  Tensor wire = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble);
  all_reduce(wire, groups_.all(), comm::Reduction::sum, {.tag = "norm"});

  squared_norm_ = values.front();
  for (size_t i = 0; i < used_.size(); ++i) used_[i] = values[i + 1] != 0;
  for (const OwnedPiece& owned : owned_) {
    if (!used_[owned.piece.parameter]) owned.tensor.mutable_grad() = Tensor();
  }
  broadcast_tensors(module_buffers_, groups_.all());
  gradient_ = Gradient::agreed;
}

std::vector<Tensor> ShardedDataParallel::counted_pieces() const {
  std::vector<Tensor> counted;
  for (const OwnedPiece& owned : owned_) {
    const bool counts = !options_.counted_in_norm || options_.counted_in_norm(units_.names[owned.piece.parameter]);
    if (counts && groups_.counts()) counted.push_back(owned.tensor.grad());
  }
  return counted;
}

std::vector<Tensor> ShardedDataParallel::counted_gradient() {
  agree();
  return counted_pieces();
}

double ShardedDataParallel::squared_norm() {
  agree();
  return squared_norm_;
}

double ShardedDataParallel::grad_norm() {
  return std::sqrt(squared_norm());
}

void ShardedDataParallel::scale_gradient(double factor) {
  agree();
  scale_owned(factor);
}

void ShardedDataParallel::scale_owned(double factor) {
  std::vector<Tensor> gradients;
  for (const OwnedPiece& owned : owned_) gradients.push_back(owned.tensor.grad());
  optim::scale(gradients, factor);
}

double ShardedDataParallel::clip(double max_norm) {
  const double norm = grad_norm();
  scale_gradient(optim::clip_scale(norm, max_norm));
  return norm;
}

void ShardedDataParallel::step(double lr) {
  const torch::NoGradGuard no_grad;
  agree();
  const auto weights = [this](size_t flat) -> const Tensor& { return slice(flat); };
  if (gathered_ == nullptr) masters_->take_written(weights);
  optimizer_->step(lr);
  masters_->publish(weights);
  drop_owned_gradients();  // those that were widened take memory
  gradient_ = Gradient::used;
  if (gathered_ != nullptr) {
    gathered_->end_step();
  } else {
    whole_weights_->publish();
  }
}

void ShardedDataParallel::drop_owned_gradients() {
  for (const OwnedPiece& owned : owned_) owned.tensor.mutable_grad() = Tensor();
}

void ShardedDataParallel::zero_grad() {
  drop_owned_gradients();
  gradients_->clear();
  if (gathered_ != nullptr) gathered_->end_step();  // also of a step that was skipped
  gradient_ = Gradient::reduced;
}

std::string ShardedDataParallel::first_not_finite() {
  agree();
  const auto count = static_cast<int64_t>(units_.names.size());
  int64_t first = count;
  for (const OwnedPiece& owned : owned_) {
    const Tensor& gradient = owned.tensor.grad();
    if (gradient.defined() && !gradient.isfinite().all().item<bool>()) {
      first = std::min(first, static_cast<int64_t>(owned.piece.parameter));
    }
  }
  Tensor wire = at::from_blob(&first, {1}, at::kLong);
  all_reduce(wire, groups_.all(), comm::Reduction::min, {.tag = "first not finite"});
  return first == count ? "" : units_.names[static_cast<size_t>(first)];
}

int64_t ShardedDataParallel::buffer_bytes() const {
  return gradients_->buffer_bytes() + (gathered_ != nullptr ? gathered_->buffer_bytes() : 0);
}

int64_t ShardedDataParallel::owned_elements() const {
  return std::accumulate(owned_.begin(), owned_.end(), int64_t{0},
                         [](int64_t sum, const OwnedPiece& owned) { return sum + owned.piece.count; });
}

}  // namespace lockstep::parallel
