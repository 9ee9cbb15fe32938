#include "lockstep/parallel/zero/gradient_shards.h"

#include <torch/torch.h>

#include <algorithm>

#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {
namespace {

// Lent flats that may be under way at once, beside the one being filled.
constexpr size_t kUnderWay = 1;

}  // namespace

GradientShards::GradientShards(std::span<const at::Tensor> parameters, std::span<const std::string> names,
                               std::span<const Flat> flats, const ShardGroups& groups, const Options& options)
    : parameters_(parameters),
      names_(names),
      flats_(flats),
      groups_(groups),
      options_(options),
      pool_(groups.all()),
      arrivals_(arrivals_of(names, options.arrivals)),
      states_(flats.size()),
      trees_(options.fixed_tree ? flats.size() : 0),
      place_of_parameter_(parameters.size()),
      contributed_(parameters.size(), false) {
  for (size_t flat = 0; flat < flats.size(); ++flat) {
    const auto& slots = flats[flat].plan.slots;
    for (size_t slot = 0; slot < slots.size(); ++slot) place_of_parameter_[slots[slot].parameter] = {flat, slot};
    if (flats[flat].trained && options_.keep_whole) open(flat);
    reset(flat);
  }
}

void GradientShards::reset(size_t flat) {
  State& state = states_[flat];
  state.awaited.clear();
  for (const BucketSlot& slot : flats_[flat].plan.slots) state.awaited.push_back(arrivals_[slot.parameter]);
  state.missing = state.awaited.size();
  state.sent = false;
}

at::ScalarType GradientShards::type_of(size_t flat) const {
  return options_.gradient_type.value_or(flats_[flat].plan.type);
}

void GradientShards::open(size_t flat) {
  const BucketPlan& plan = flats_[flat].plan;
  State& state = states_[flat];
  if (options_.keep_whole) {
    state.whole = flat_zeros(plan.elements, type_of(flat), plan.device, groups_.all());
  } else {
    const int64_t bytes = plan.elements * static_cast<int64_t>(at::elementSize(type_of(flat)));
    state.buffer = pool_.take_free(bytes, plan.device);
    while (!state.buffer.defined() && under_way_.size() > kUnderWay) {
      collect_oldest();
      state.buffer = pool_.take_free(bytes, plan.device);
    }
    if (!state.buffer.defined()) state.buffer = pool_.take(bytes, plan.device);
    state.whole = part_of(state.buffer, 0, plan.elements, type_of(flat));
  }
  state.gradients.clear();
  for (const BucketSlot& slot : plan.slots) {
    state.gradients.push_back(view_like(parameters_[slot.parameter], state.whole, slot.offset));
  }
}

void GradientShards::arrived(size_t parameter, bool reduce) {
  const auto [flat, slot] = place_of_parameter_[parameter];
  State& state = states_[flat];
  if (state.sent) {
    throw Unsupported(text("ShardedDataParallel: ", names_[parameter],
                           " received a gradient after its flat was sent in the same backward; set overlap = false"));
  }
  if (options_.keep_whole && finished_) {
    throw Unsupported(
        text("ShardedDataParallel: ", names_[parameter], " accumulates onto a gradient that is already ",
             "reduced; in stage 1 run all backwards but the last under no_sync(), or zero the gradients"));
  }
  if (!state.whole.defined()) open(flat);
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  at::Tensor& home = state.gradients[slot];
  if (gradient.data_ptr() != home.data_ptr()) {
    home.copy_(gradient);
    gradient = home;
  }
  contributed_[parameter] = true;
  if (!reduce || state.awaited[slot] == 0 || --state.awaited[slot] > 0) return;
  --state.missing;
  const bool overlaps = options_.overlap && !options_.fixed_tree;
  while (overlaps && next_ < flats_.size() && (states_[next_].missing == 0 || !flats_[next_].trained)) {
    launch(next_++);
  }
}

void GradientShards::end_backward(const BackwardOf& backward) {
  const torch::NoGradGuard no_grad;
  for (size_t flat = 0; flat < flats_.size(); ++flat) {
    if (!flats_[flat].trained) continue;
    State& state = states_[flat];
    if (!state.whole.defined()) open(flat);
    take_from_parameters(flat);
    trees_[flat].push(backward, state.whole);
    if (!options_.keep_whole) close(state);
  }
}

// Parameters have no gradients any more; where they had none, the flat has zeros.
void GradientShards::take_from_parameters(size_t flat) {
  State& state = states_[flat];
  const auto& slots = flats_[flat].plan.slots;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    at::Tensor& gradient = parameters_[slots[slot].parameter].mutable_grad();
    if (!gradient.defined()) state.gradients[slot].zero_();
    gradient = at::Tensor();
  }
}

void GradientShards::launch(size_t flat) {
  if (!flats_[flat].trained) return;
  const torch::NoGradGuard no_grad;
  State& state = states_[flat];
  if (!state.whole.defined()) open(flat);
  at::Tensor own = own_slice(flat);
  const std::string tag = text("gradients ", flats_[flat].name);
  const auto reduce = [&] {
    ++collectives_;
    return reduce_scatter_tensor_async(own, state.whole, groups_.shard(), options_.reduction, {.tag = tag});
  };
  if (options_.fixed_tree) {
    state.work = trees_[flat].reduce(state.whole, own, reduce);
  } else {
    take_from_parameters(flat);
    state.work = reduce();
  }
  state.sent = true;
  under_way_.push_back(flat);
}

void GradientShards::collect_oldest() {
  const torch::NoGradGuard no_grad;
  const size_t flat = under_way_.front();
  under_way_.pop_front();
  State& state = states_[flat];
  state.work.wait();
  const at::Tensor own = own_slice(flat);
  if (options_.keep_whole) {
    state.shard = own;
    return;
  }
  if (state.shard.defined()) {
    state.shard.add_(own);
  } else {
    state.shard = own.clone();
  }
  close(state);
}

void GradientShards::close(State& state) {
  state.whole = at::Tensor();
  state.gradients.clear();
  if (state.buffer.defined()) pool_.give_back(std::move(state.buffer));
}

at::Tensor GradientShards::own_slice(size_t flat) const {
  return states_[flat].whole.narrow(0, groups_.shard().rank() * flats_[flat].slice, flats_[flat].slice);
}

void GradientShards::finish() {
  while (next_ < flats_.size()) launch(next_++);
  while (!under_way_.empty()) collect_oldest();
  for (size_t flat = 0; flat < flats_.size(); ++flat) reset(flat);
  next_ = 0;
  finished_ = true;
}

void GradientShards::add_replicas() {
  if (groups_.replicas() != nullptr) add_over(*groups_.replicas(), options_.reduction);
}

void GradientShards::add_over(comm::ProcessGroup& group, comm::Reduction reduction) {
  std::vector<comm::Work> works;
  for (size_t flat = 0; flat < flats_.size(); ++flat) {
    if (!states_[flat].shard.defined()) continue;
    const std::string tag = text("gradients ", flats_[flat].name);
    works.push_back(all_reduce_async(states_[flat].shard, group, reduction, {.tag = tag}));
  }
  for (const comm::Work& work : works) work.wait();
}

void GradientShards::clear() {
  while (!under_way_.empty()) collect_oldest();
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  for (State& state : states_) {
    state.shard = at::Tensor();
    if (!options_.keep_whole) close(state);
  }
  std::fill(contributed_.begin(), contributed_.end(), false);
  trees_.assign(trees_.size(), {});
  for (size_t flat = 0; flat < flats_.size(); ++flat) reset(flat);
  next_ = 0;
  finished_ = false;
}

int64_t GradientShards::gradient_bytes() const {
  int64_t bytes = 0;
  for (const State& state : states_) {
    if (state.whole.defined()) bytes += static_cast<int64_t>(state.whole.nbytes());
    if (state.shard.defined() && !options_.keep_whole) bytes += static_cast<int64_t>(state.shard.nbytes());
  }
  return bytes;
}

}  // namespace lockstep::parallel
