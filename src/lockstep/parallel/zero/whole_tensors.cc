// Whole tensors out of shards: what comparing, saving and printing need.
#include <torch/torch.h>

#include "lockstep/distributed/collectives.h"
#include "lockstep/parallel/zero/sharded_data_parallel.h"

namespace lockstep::parallel {

using at::Tensor;

std::vector<Tensor> ShardedDataParallel::whole(std::optional<at::ScalarType> type, const FillSlice& fill,
                                               std::optional<int> only_on) {
  const torch::NoGradGuard no_grad;
  comm::ProcessGroup& group = groups_.shard();
  std::vector<Tensor> result(units_.tensors.size());
  for (size_t index = 0; index < flats_.size(); ++index) {
    const Flat& flat = flats_[index];
    const auto options = at::TensorOptions(flat.plan.device).dtype(type.value_or(trained(index).scalar_type()));
    Tensor own = at::zeros({flat.slice}, options), all;
    fill(index, own);
    if (!only_on || group.rank() == *only_on) all = at::empty({flat.plan.elements}, options);
    if (only_on) {
      lockstep::gather(own, all, *only_on, group, {.tag = "whole tensors"});
    } else {
      all_gather_into_tensor(all, own, group, {.tag = "whole tensors"});
    }
    if (!all.defined()) continue;
    for (const BucketSlot& slot : flat.plan.slots) {
      result[slot.parameter] = view_like(units_.tensors[slot.parameter], all, slot.offset);
    }
  }
  return result;
}

std::vector<NamedTensor> ShardedDataParallel::parameters(std::optional<int> only_on) {
  std::vector<Tensor> tensors(units_.tensors.size());
  const bool in_shards = gathered_ != nullptr || masters_->any();
  if (in_shards) tensors = whole({}, [&](size_t flat, Tensor& own) { own.copy_(trained(flat)); }, only_on);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool held_whole = gathered_ == nullptr && (!in_shards || !units_.tensors[i].requires_grad());
    if (held_whole) tensors[i] = units_.tensors[i].detach();
  }
  std::vector<NamedTensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) result.push_back({units_.names[i], tensors[i]});
  }
  return result;
}

std::vector<NamedTensor> ShardedDataParallel::gradients() {
  agree();
  if (gradient_ == Gradient::used) {
    throw Unsupported("ShardedDataParallel::gradients: the update has used them up; call it before step()");
  }
  const auto tensors = whole({}, [&](size_t flat, Tensor& own) {
    for (const OwnedPiece& owned : owned_) {
      if (owned.flat != flat || !owned.tensor.grad().defined()) continue;
      own.narrow(0, owned.piece.in_slice, owned.piece.count).copy_(owned.tensor.grad());
    }
  });
  std::vector<NamedTensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (units_.tensors[i].requires_grad()) result.push_back({units_.names[i], tensors[i]});
  }
  return result;
}

std::vector<NamedTensor> ShardedDataParallel::state() {
  const std::vector<optim::State> own_state = optimizer_->state();
  std::vector<std::vector<Tensor>> by_kind;
  for (size_t kind = 0; kind < state_kinds_.size(); ++kind) {
    by_kind.push_back(whole(state_kinds_[kind].tensor.scalar_type(), [&](size_t flat, Tensor& own) {
      for (size_t i = 0; i < owned_.size(); ++i) {
        const Piece& piece = owned_[i].piece;
        if (owned_[i].flat != flat) continue;
        own.narrow(0, piece.in_slice, piece.count).copy_(own_state[i * state_kinds_.size() + kind].tensor);
      }
    }));
  }
  std::vector<NamedTensor> result;
  for (size_t i = 0; i < units_.tensors.size(); ++i) {
    for (size_t kind = 0; kind < state_kinds_.size() && units_.tensors[i].requires_grad(); ++kind) {
      const Tensor& tensor = by_kind[kind][i];
      const bool is_number = state_kinds_[kind].tensor.dim() == 0;  // the same in all pieces
      result.push_back(
          {text(units_.names[i], "/", state_kinds_[kind].name), is_number ? tensor.flatten()[0].clone() : tensor});
    }
  }
  return result;
}

}  // namespace lockstep::parallel
