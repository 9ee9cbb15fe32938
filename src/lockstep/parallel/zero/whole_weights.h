// Stages 1 and 2: parameters stay whole on every rank, laid out as flats, of which each rank updates its slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "lockstep/parallel/zero/flat.h"
#include "lockstep/parallel/zero/shard_groups.h"

namespace lockstep::parallel {

class WholeWeights {
 public:
  // Moves the parameters into flats; the tensors stay the same objects. All of it must outlive this.
  //   set_values   writes a parameter's values into the tensor that becomes its own
  using SetValues = std::function<void(size_t parameter, const at::Tensor& home)>;
  WholeWeights(std::span<const at::Tensor> parameters, std::span<const Flat> flats, const ShardGroups& groups,
               const SetValues& set_values);

  // What this rank owns of flats[flat]: [slice], part of the parameters' memory.
  const at::Tensor& slice(size_t flat) const { return slices_[flat]; }

  // Gives all ranks every slice, after its owner's update.
  void publish();

 private:
  std::span<const Flat> flats_;
  const ShardGroups& groups_;
  std::vector<at::Tensor> whole_, slices_;
};

}  // namespace lockstep::parallel
