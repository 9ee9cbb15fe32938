// The fixed order in which a bucket of gradients is added (microbatch_tree.h), where several stages may use its
// parameters and backwards may come in halves: micro-batches and then ranks are added in a tree for each part, the
// parts after that, in rising order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data/microbatch_tree.h"

namespace lockstep::parallel {

// Whose gradients a backward makes.
struct BackwardOf {
  enum class Half { both, first, second };  // the first is followed by the second (nn/deferred_weights.h)
  int64_t microbatch = 0;                   // of this rank's step, counted from 0
  int part = 0;                             // of those that use the same parameters: a stage
  Half half = Half::both;

  // Where nobody says more: micro-batches one after the other, each whole.
  BackwardOf next() const { return {.microbatch = microbatch + 1}; }
};

class GradientTrees {
 public:
  // Takes the bucket's gradients of one backward; `bucket`, which is not kept, may be changed. Halves bring different
  // parameters, and zeros for the others.
  void push(const BackwardOf& backward, const at::Tensor& bucket);

  // Writes what was pushed into `bucket` and has `reduce` add it over ranks, to `reduced`: once, or, waiting for it,
  // for each part. Forgets everything. Zeros when nothing was pushed.
  //   returns  what to wait for before `reduced` is used
  comm::Work reduce(const at::Tensor& bucket, const at::Tensor& reduced, const std::function<comm::Work()>& reduce);

 private:
  using HalfKey = std::pair<int, int64_t>;  // part, micro-batch
  std::map<int, MicrobatchTree> trees_;     // by part
  std::map<HalfKey, at::Tensor> first_halves_;
};

}  // namespace lockstep::parallel
