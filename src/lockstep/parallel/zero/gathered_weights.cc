#include "lockstep/parallel/zero/gathered_weights.h"

#include <torch/torch.h>

#include <algorithm>

#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {
namespace {

constexpr int64_t kLive = 2;  // units: the one in use and the next

// Behind the back of autograd: the tensor, its views and what backward has saved of them all see the new memory.
void point_storage(const at::Tensor& parameter, void* data) {
  c10::StorageImpl& storage = *parameter.storage().unsafeGetStorageImpl();
  storage.clear_data_ptr_access_error_msg_();
  storage.set_data_ptr_noswap(at::DataPtr(data, parameter.device()));
}

// Whoever reads or writes it is told, instead of reading at address zero.
void take_memory(const at::Tensor& parameter, const std::string& unit) {
  point_storage(parameter, nullptr);
  parameter.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      text("the parameters of unit \"", unit, "\" are not gathered; use them inside ShardedDataParallel::run"));
}

}  // namespace

GatheredWeights::GatheredWeights(std::span<const at::Tensor> parameters, std::span<const Flat> flats,
                                 const ShardGroups& groups, Options options)
    : parameters_(parameters), flats_(flats), groups_(groups), options_(std::move(options)), pool_(groups.all()) {
  const torch::NoGradGuard no_grad;
  for (size_t flat = 0; flat < flats.size(); ++flat) {
    if (flats[flat].unit >= units_.size()) units_.resize(flats[flat].unit + 1);
    Unit& unit = units_[flats[flat].unit];
    unit.flats.push_back(flat);
    unit.bytes += flats[flat].bytes();
    largest_ = std::max(largest_, unit.bytes);
    const BucketPlan& plan = flats[flat].plan;
    slices_.push_back(flat_zeros(flats[flat].slice, plan.type, plan.device, groups.all()));
  }
  for (Unit& unit : units_) keep_slices(unit);
  peak_live_ = 0;
}

void GatheredWeights::keep_slices(Unit& unit) {
  take_buffer(unit, options_.keep ? unit.bytes : largest_);
  for_each_parameter(unit, [&](size_t index, const at::Tensor& home) {
    options_.set_values(index, home);
    at::Tensor parameter = parameters_[index];
    parameter.set_data(home);
  });
  int64_t offset = 0;
  for (const size_t flat : unit.flats) {
    const at::Tensor whole = part_of(unit.buffer, offset, flats_[flat].plan.elements, flats_[flat].plan.type);
    slices_[flat].copy_(whole.narrow(0, groups_.shard().rank() * flats_[flat].slice, flats_[flat].slice));
    offset += flats_[flat].bytes();
  }
  drop(unit);
}

void GatheredWeights::for_each_parameter(const Unit& unit,
                                         const std::function<void(size_t, const at::Tensor& home)>& visit) const {
  int64_t offset = 0;
  for (const size_t flat : unit.flats) {
    const BucketPlan& plan = flats_[flat].plan;
    const at::Tensor whole = part_of(unit.buffer, offset, plan.elements, plan.type);
    for (const BucketSlot& slot : plan.slots) {
      visit(slot.parameter, view_like(parameters_[slot.parameter], whole, slot.offset));
    }
    offset += flats_[flat].bytes();
  }
}

void GatheredWeights::take_buffer(Unit& unit, int64_t bytes) {
  const at::Device device = flats_[unit.flats.front()].plan.device;
  unit.buffer = pool_.take(bytes, device);
  peak_live_ = std::max(peak_live_, ++live_);
}

void GatheredWeights::drop(Unit& unit) {
  for (const comm::Work& work : unit.works) work.wait();
  unit.works.clear();
  unit.ahead = false;
  for (const size_t flat : unit.flats) {
    for (const BucketSlot& slot : flats_[flat].plan.slots) take_memory(parameters_[slot.parameter], flats_[flat].name);
  }
  pool_.give_back(std::move(unit.buffer));
  --live_;
}

void GatheredWeights::start(Unit& unit, bool ahead) {
  if (!options_.keep && live_ >= kLive) {  // what was gathered ahead and is not what is used
    for (Unit& other : units_) {
      if (other.ahead) drop(other);
    }
  }
  take_buffer(unit, options_.keep || unit.held ? unit.bytes : largest_);
  unit.ahead = ahead && !unit.held;
  ++gathers_;
  int64_t offset = 0;
  for (const size_t flat : unit.flats) {
    at::Tensor whole = part_of(unit.buffer, offset, flats_[flat].plan.elements, flats_[flat].plan.type);
    offset += flats_[flat].bytes();
    const std::string tag = text("weights ", flats_[flat].name);
    if (ahead) {
      unit.works.push_back(all_gather_into_tensor_async(whole, slices_[flat], groups_.shard(), {.tag = tag}));
    } else {
      all_gather_into_tensor(whole, slices_[flat], groups_.shard(), {.tag = tag});
    }
  }
}

void GatheredWeights::use(size_t index, bool training) {
  Unit& unit = units_[index];
  if (!unit.buffer.defined()) start(unit, /*ahead=*/false);
  for (const comm::Work& work : unit.works) work.wait();
  unit.works.clear();
  unit.ahead = false;
  for_each_parameter(
      unit, [&](size_t parameter, const at::Tensor& home) { point_storage(parameters_[parameter], home.data_ptr()); });
  if (!training) return;
  if (at_ == sequence_.size() || sequence_[at_] != index) {
    sequence_.resize(at_);
    sequence_.push_back(index);
  }
  ++at_;
  if (options_.prefetch && at_ < sequence_.size()) {
    Unit& next = units_[sequence_[at_]];
    if (!next.buffer.defined() && (options_.keep || live_ < kLive)) start(next, /*ahead=*/true);
  }
}

void GatheredWeights::hold(size_t index) {
  units_[index].held = true;
  units_[index].ahead = false;
  if (!units_[index].buffer.defined()) start(units_[index], /*ahead=*/true);
}

void GatheredWeights::let_go(size_t index) {
  units_[index].held = false;
  release(index);
}

void GatheredWeights::release(size_t index) {
  const Unit& unit = units_[index];
  if (!options_.keep && !unit.held && unit.buffer.defined()) drop(units_[index]);
}

void GatheredWeights::release_used() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit].ahead) release(unit);
  }
}

void GatheredWeights::end_step() {
  for (Unit& unit : units_) {
    unit.held = false;
    if (unit.buffer.defined()) drop(unit);
  }
  if (at_ > 0) sequence_.resize(at_);
  at_ = 0;
}

}  // namespace lockstep::parallel
