// Tensor and sequence parallelism of the transformer: the seams of a rank that holds slices of its weights.
//
//   tokens -> embed (split vocabulary) -> dropout -> [ norm -> q,k,v | attend | output -> dropout -> +
//                                                      norm -> up | gelu | down -> dropout -> + ] -> norm -> losses
//   between the bars: this rank's heads and features; outside: whole, or with sequence parallelism its positions
#pragma once

#include <memory>

#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/seams.h"
#include "lockstep/parallel/tensor/tensor_group.h"
#include "lockstep/spec/placement.h"
#include "lockstep/spec/plan.h"

namespace lockstep::parallel {

// What is not split by the rules is computed by every rank alike.
struct SplitDims {
  bool vocab = true, heads = true, ffn = true;
};

class TensorLinear : public nn::LinearSeam {
 public:
  TensorLinear(const TensorGroup& group, SplitDims dims, nn::DeferredWeights* deferred)
      : group_(group), dims_(dims), deferred_(deferred), local_(deferred) {}
  std::vector<at::Tensor> linears(const at::Tensor& x, std::span<const nn::Projection> projections, nn::Split split,
                                  const nn::Site& site) override;

 private:
  bool is_split(const nn::Site& site) const;

  const TensorGroup& group_;
  SplitDims dims_;
  nn::DeferredWeights* deferred_;
  nn::LocalLinear local_;
};

class TensorLoss : public nn::LossSeam {
 public:
  TensorLoss(const TensorGroup& group, SplitDims dims, int64_t vocab, nn::DeferredWeights* deferred)
      : group_(group), dims_(dims), vocab_(vocab), deferred_(deferred), local_(deferred) {}
  at::Tensor embed(const at::Tensor& tokens_BS, const at::Tensor& table_VH, const at::Tensor& positions_SH,
                   const nn::Site& site) override;
  at::Tensor token_losses(const at::Tensor& hidden_BSH, const at::Tensor& head_VH, const at::Tensor& targets_BS,
                          const nn::Site& site) override;

 private:
  const TensorGroup& group_;
  SplitDims dims_;
  int64_t vocab_;
  nn::DeferredWeights* deferred_;
  nn::LocalLoss local_;
};

// Masks of the positions that this rank holds; without sequence parallelism of all.
class TensorDropout : public nn::DropoutSeam {
 public:
  TensorDropout(const TensorGroup& group, uint64_t seed) : group_(group), seed_(seed) {}
  at::Tensor dropout(const at::Tensor& x_BSH, double p, const nn::Site& site) override;

 private:
  const TensorGroup& group_;
  uint64_t seed_;
};

// Owns the seams of one rank; `seams()` lends them out and must not outlive it.
class TensorParallel {
 public:
  // `group` is this rank's along the tensor axis and must outlive this; of size 1 nothing is exchanged.
  TensorParallel(const spec::RunPlan& plan, comm::ProcessGroup& group, nn::Deferring deferring = {});
  nn::Seams seams() { return {linear_, loss_, attention_, dropout_}; }
  const TensorGroup& group() const { return group_; }

 private:
  TensorGroup group_;
  TensorLinear linear_;
  TensorLoss loss_;
  nn::LocalAttention attention_;
  TensorDropout dropout_;
};

}  // namespace lockstep::parallel
