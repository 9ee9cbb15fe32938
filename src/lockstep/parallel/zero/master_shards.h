// fp32 masters of what a rank owns of bf16 and fp16 weights (optim/master_weights.h says why): beside each slice of
// weights one of masters, which the optimizer updates and the slice is the rounding of.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "lockstep/parallel/zero/flat.h"

namespace lockstep::parallel {

class MasterShards {
 public:
  // Zeros, until values are kept. `parameters` and `flats` must outlive this; those not trained have no masters, and
  // without `wanted` none have.
  MasterShards(std::span<const at::Tensor> parameters, std::span<const Flat> flats, bool wanted);

  // Of flats[flat]: [slice] in fp32; undefined when its weights are of a wider type, their own masters.
  const at::Tensor& shard(size_t flat) const { return shards_[flat]; }
  bool any() const;
  bool has(size_t parameter) const { return has_[parameter]; }

  // Takes this rank's part of a parameter that has masters. `values`: all of the parameter, laid out as it is, fp32 or
  // of its own type.
  void keep(size_t parameter, const at::Tensor& values);

  // Rounds the masters (to nearest, ties to even) into this rank's slices of the weights.
  using SliceOf = std::function<const at::Tensor&(size_t flat)>;
  void publish(const SliceOf& weights) const;

  // Takes the weights of every parameter that somebody wrote into (loaded, set) since the last call: else the next
  // update would bring back the old ones.
  void take_written(const SliceOf& weights);

 private:
  std::span<const at::Tensor> parameters_;
  std::span<const Flat> flats_;
  std::vector<at::Tensor> shards_;
  std::vector<bool> has_;
  struct Place {
    size_t flat = 0;
    Piece piece;  // of count 0: this rank owns nothing of it
  };
  std::vector<Place> place_of_parameter_;
  std::vector<int64_t> versions_;  // of the parameters, when their masters were last equal to them
};

}  // namespace lockstep::parallel
