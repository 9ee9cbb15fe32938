#include "lockstep/parallel/data/data_parallel.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {

DataParallel::DataParallel(torch::nn::Module& module, comm::ProcessGroup& group, DataParallelOptions options)
    : group_(group), options_(options) {
  std::vector<NamedTensor> trained;
  for (NamedTensor& parameter : broadcast_parameters(module, group)) {
    if (parameter.tensor.requires_grad()) trained.push_back(std::move(parameter));
  }
  for (const auto& item : module.named_buffers()) module_buffers_.push_back(item.value());
  broadcast_tensors(module_buffers_, group);
  start(trained);
}

DataParallel::DataParallel(std::vector<NamedTensor> parameters, comm::ProcessGroup& group, DataParallelOptions options)
    : group_(group), options_(options) {
  start(parameters);
}

void DataParallel::start(const std::vector<NamedTensor>& parameters) {
  if (options_.reduction != comm::Reduction::average && options_.reduction != comm::Reduction::sum) {
    throw InvalidArgument(text("DataParallel: reduction = ", comm::name(options_.reduction),
                               ": gradients are reduced by average or sum (nearest: average)"));
  }
  for (const NamedTensor& parameter : parameters) {
    parameters_.push_back(parameter.tensor);
    names_.push_back(parameter.name);
  }
  contributed_.assign(parameters_.size(), false);
  awaited_ = arrivals_of(names_, options_.arrivals);
  // Backward runs through the module from its end: until the true order is known, assume the reverse of registration.
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  make_buckets(order);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.emplace_back(parameters_[i], [this, i] { on_gradient(i); });
  }
}

void DataParallel::make_buckets(std::span<const size_t> order) {
  buckets_.clear();
  place_of_parameter_.assign(parameters_.size(), {});
  missing_in_bucket_.clear();
  for (BucketPlan& plan : plan_buckets(parameters_, order, options_.bucket_bytes, options_.gradient_type)) {
    for (size_t slot = 0; slot < plan.slots.size(); ++slot) {
      place_of_parameter_[plan.slots[slot].parameter] = {buckets_.size(), slot};
    }
    missing_in_bucket_.push_back(plan.slots.size());
    buckets_.push_back(std::make_unique<Bucket>(std::move(plan), parameters_, group_));
  }
  trees_ = std::vector<GradientTrees>(options_.fixed_tree ? buckets_.size() : 0);
  works_.resize(buckets_.size());
  reduced_version_.assign(parameters_.size(), -1);
}

void DataParallel::on_gradient(size_t parameter) {
  const auto [bucket, slot] = place_of_parameter_[parameter];
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  at::Tensor& home = buckets_[bucket]->gradient(slot);
  const int64_t reduced = std::exchange(reduced_version_[parameter], -1);
  if (next_bucket_ > bucket) {
    throw Unsupported(text("DataParallel: ", names_[parameter],
                           " received a gradient after its bucket was sent in the same ",
                           "step; run backwards under no_sync() until its last, or set overlap = false"));
  }
  if (gradient.data_ptr() != home.data_ptr()) {
    home.copy_(gradient);
    gradient = home;
  } else if (options_.reduction == comm::Reduction::sum && reduced >= 0 && home._version() == reduced + 1) {
    throw Unsupported(
        text("DataParallel: ", names_[parameter], " accumulates onto a gradient that is already summed over ranks, ",
             "which would count it again; run all backwards but the last under no_sync(), or zero the gradients"));
  }

  if (options_.fixed_tree || (!accumulate_only_ && options_.finish_in_backward)) {
    end_of_backward_.call([this] { end_of_backward(); });
  }
  if (accumulate_only_ || awaited_[parameter] == 0 || --awaited_[parameter] > 0) return;
  ready_order_.push_back(parameter);
  --missing_in_bucket_[bucket];
  if (options_.overlap && !options_.fixed_tree) launch_ready();
}

void DataParallel::end_of_backward() {
  if (options_.fixed_tree) {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      gather(*buckets_[i]);
      trees_[i].push(backward_, buckets_[i]->flat());
    }
    backward_ = backward_.next();
    for (const at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  }
  if (!accumulate_only_ && options_.finish_in_backward) finish();
}

// Brings every gradient of the bucket to its place in it; where this rank has none, zeros.
void DataParallel::gather(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  for (size_t slot = 0; slot < bucket.plan().slots.size(); ++slot) {
    const size_t parameter = bucket.plan().slots[slot].parameter;
    at::Tensor& gradient = parameters_[parameter].mutable_grad();
    at::Tensor& home = bucket.gradient(slot);
    if (!gradient.defined()) {
      home.zero_();
      continue;
    }
    contributed_[parameter] = true;
    if (gradient.data_ptr() == home.data_ptr()) continue;
    home.copy_(gradient);
    gradient = home;
  }
}

void DataParallel::launch_ready() {
  while (next_bucket_ < buckets_.size() && missing_in_bucket_[next_bucket_] == 0) launch(next_bucket_);
}

void DataParallel::launch(size_t index) {
  const torch::NoGradGuard no_grad;
  if (options_.fixed_tree) {
    const at::Tensor& flat = buckets_[index]->flat();
    works_[index] = trees_[index].reduce(flat, flat, [&] { return reduce(index); });
  } else {
    gather(*buckets_[index]);
    works_[index] = reduce(index);
  }
  next_bucket_ = index + 1;
}

// The bucket as it is, with this rank's flags.
comm::Work DataParallel::reduce(size_t index) {
  Bucket& bucket = *buckets_[index];
  const size_t slots = bucket.plan().slots.size();
  const auto used = std::make_unique<bool[]>(slots);
  for (size_t slot = 0; slot < slots; ++slot) used[slot] = contributed_[bucket.plan().slots[slot].parameter];
  bucket.write_flags({used.get(), slots});
  const std::string tag = text("bucket ", index);
  at::Tensor flat = bucket.flat();
  ++collectives_;
  return all_reduce_async(flat, group_, options_.reduction, {.tag = tag, .balanced_tree = options_.fixed_tree});
}

void DataParallel::finish() {
  while (next_bucket_ < buckets_.size()) launch(next_bucket_);
  for (const comm::Work& work : works_) work.wait();
  for (const auto& bucket : buckets_) return_gradients(*bucket);
  if (!order_followed_) follow_ready_order();
  broadcast_tensors(module_buffers_, group_);

  for (size_t i = 0; i < buckets_.size(); ++i) missing_in_bucket_[i] = buckets_[i]->plan().slots.size();
  std::fill(contributed_.begin(), contributed_.end(), false);
  awaited_ = arrivals_of(names_, options_.arrivals);
  ready_order_.clear();
  next_bucket_ = 0;
  backward_ = {};
  ++reductions_;
}

void DataParallel::return_gradients(Bucket& bucket) {
  const auto used_by_some_rank = bucket.read_flags();
  for (size_t slot = 0; slot < used_by_some_rank.size(); ++slot) {
    const size_t parameter = bucket.plan().slots[slot].parameter;
    parameters_[parameter].mutable_grad() = used_by_some_rank[slot] ? bucket.gradient(slot) : at::Tensor();
    reduced_version_[parameter] = used_by_some_rank[slot] ? static_cast<int64_t>(bucket.gradient(slot)._version()) : -1;
  }
}

// After the first reduction: buckets in the order in which rank 0's gradients arrived, on every rank.
void DataParallel::follow_ready_order() {
  order_followed_ = true;
  if (group_.size() == 1 || parameters_.empty()) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (awaited_[i] > 0) ready_order_.push_back(i);
  }
  std::vector<int64_t> order(ready_order_.begin(), ready_order_.end());
  at::Tensor wire = at::from_blob(order.data(), {static_cast<int64_t>(order.size())}, at::kLong);
  lockstep::broadcast(wire, 0, group_, {.tag = "bucket order"});

  const torch::NoGradGuard no_grad;
  const auto old_buckets = std::move(buckets_);  // their memory holds the gradients until these are copied
  make_buckets(std::vector<size_t>(order.begin(), order.end()));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (!gradient.defined()) continue;
    at::Tensor& home = buckets_[place_of_parameter_[i].bucket]->gradient(place_of_parameter_[i].slot);
    home.copy_(gradient);
    gradient = home;
    reduced_version_[i] = static_cast<int64_t>(home._version());
  }
}

void DataParallel::zero_grad() {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  std::fill(reduced_version_.begin(), reduced_version_.end(), -1);
}

int64_t DataParallel::bucket_bytes() const {
  int64_t total = 0;
  for (const auto& bucket : buckets_) total += static_cast<int64_t>(bucket->flat().nbytes());
  return total;
}

}  // namespace lockstep::parallel
