#include "lockstep/parallel/zero/master_shards.h"

#include <torch/torch.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

MasterShards::MasterShards(std::span<const at::Tensor> parameters, std::span<const Flat> flats, bool wanted)
    : parameters_(parameters),
      flats_(flats),
      shards_(flats.size()),
      has_(parameters.size(), false),
      place_of_parameter_(parameters.size()) {
  for (size_t index = 0; index < flats.size(); ++index) {
    const Flat& flat = flats[index];
    if (!wanted || !flat.trained || !at::isReducedFloatingType(flat.plan.type)) continue;
    shards_[index] = at::zeros({flat.slice}, at::TensorOptions(flat.plan.device).dtype(at::kFloat));
    for (const BucketSlot& slot : flat.plan.slots) {
      has_[slot.parameter] = true;
      place_of_parameter_[slot.parameter].flat = index;
    }
    for (const Piece& piece : flat.pieces) place_of_parameter_[piece.parameter].piece = piece;
  }
  for (const at::Tensor& parameter : parameters) versions_.push_back(static_cast<int64_t>(parameter._version()));
}

bool MasterShards::any() const {
  return std::ranges::any_of(shards_, [](const at::Tensor& shard) { return shard.defined(); });
}

void MasterShards::keep(size_t parameter, const at::Tensor& values) {
  LOCKSTEP_CHECK(has_[parameter], "parameter ", parameter, " has no masters");
  const auto& [flat, piece] = place_of_parameter_[parameter];
  if (piece.count == 0) return;
  const at::Tensor in_memory_order = values.as_strided({values.numel()}, {1});
  shards_[flat]
      .narrow(0, piece.in_slice, piece.count)
      .copy_(in_memory_order.narrow(0, piece.in_parameter, piece.count));
}

void MasterShards::publish(const SliceOf& weights) const {
  for (size_t flat = 0; flat < shards_.size(); ++flat) {
    if (shards_[flat].defined()) at::Tensor(weights(flat)).copy_(shards_[flat]);
  }
}

void MasterShards::take_written(const SliceOf& weights) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto version = static_cast<int64_t>(parameters_[i]._version());
    if (std::exchange(versions_[i], version) == version) continue;
    const auto& [flat, piece] = place_of_parameter_[i];
    if (!has_[i] || piece.count == 0) continue;
    shards_[flat].narrow(0, piece.in_slice, piece.count).copy_(weights(flat).narrow(0, piece.in_slice, piece.count));
  }
}

}  // namespace lockstep::parallel
