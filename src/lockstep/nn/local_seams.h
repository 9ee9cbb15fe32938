// The seams of one device: what the model computes when no ranks meet. They are also the reference that every other
// implementation is compared with.
#pragma once

#include "lockstep/nn/deferred_weights.h"
#include "lockstep/nn/seams.h"

namespace lockstep::nn {

// Where layers put off the gradients of their weights.
struct Deferring {
  DeferredWeights* weights = nullptr;  // null: nowhere. Must outlive the graphs
  bool head = true;                    // the head's too; not where its weight is an embedding of the same backward
  DeferredWeights* of_head() const { return head ? weights : nullptr; }
};

class LocalLinear : public LinearSeam {
 public:
  explicit LocalLinear(DeferredWeights* deferred = nullptr) : deferred_(deferred) {}
  std::vector<at::Tensor> linears(const at::Tensor& x, std::span<const Projection> projections, Split split,
                                  const Site& site) override;

 private:
  DeferredWeights* deferred_;
};

class LocalLoss : public LossSeam {
 public:
  explicit LocalLoss(DeferredWeights* deferred = nullptr) : deferred_(deferred) {}
  at::Tensor embed(const at::Tensor& tokens_BS, const at::Tensor& table_VH, const at::Tensor& positions_SH,
                   const Site& site) override;
  at::Tensor token_losses(const at::Tensor& hidden_BSH, const at::Tensor& head_VH, const at::Tensor& targets_BS,
                          const Site& site) override;

 private:
  DeferredWeights* deferred_;
};

class LocalAttention : public AttentionSeam {
 public:
  at::Tensor attend(const at::Tensor& q_BNSD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
                    const Site& site) override;
  at::Tensor positions(int64_t sequence, at::Device device) override;
};

// Positions [first, first + S) of sequences of `of`: what a rank may hold of them.
struct SequencePart {
  int64_t first = 0, of = 0;
};

// What DropoutSeam::dropout computes, for x_BSH that is a part of its sequences.
at::Tensor keyed_dropout(const at::Tensor& x_BSH, double p, const Site& site, uint64_t seed, SequencePart part);

class LocalDropout : public DropoutSeam {
 public:
  explicit LocalDropout(uint64_t seed) : seed_(seed) {}
  at::Tensor dropout(const at::Tensor& x_BSH, double p, const Site& site) override;

 private:
  uint64_t seed_;
};

// Owns one of each; `seams()` lends them out and must not outlive it.
class LocalSeams {
 public:
  explicit LocalSeams(uint64_t seed, Deferring deferring = {})
      : linear_(deferring.weights), loss_(deferring.of_head()), dropout_(seed) {}
  Seams seams() { return {linear_, loss_, attention_, dropout_}; }

 private:
  LocalLinear linear_;
  LocalLoss loss_;
  LocalAttention attention_;
  LocalDropout dropout_;
};

}  // namespace lockstep::nn
