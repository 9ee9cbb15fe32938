// Tensor-parallel layers for any torch::nn::Module. Z = GeLU(X A) B over the ranks of a group:
//
//   ColumnParallelLinear a(hidden, 4 * hidden, group);   // each rank holds some of the outputs
//   RowParallelLinear b(4 * hidden, hidden, group);      // each rank holds some of the inputs
//   Z = b->forward(torch::gelu(a->forward(X)));          // X and Z are the same on every rank
//
// Every rank of the group constructs them together. Initial values are those that torch's own layer of the whole size
// would draw on rank 0, cut into slices, so a group of any size starts alike. A size that the ranks do not divide gives
// the first ranks one more. The group must outlive the module.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "lockstep/parallel/tensor/tensor_group.h"
#include "lockstep/parallel/tensor/vocabulary.h"

namespace lockstep::parallel {

struct ColumnParallelOptions {
  bool bias = true;
  bool gather_output = false;  // every rank gets all outputs; else its own, for a row-parallel layer
};

class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  ColumnParallelLinearImpl(int64_t in, int64_t out, comm::ProcessGroup& group, ColumnParallelOptions options = {});
  // x [..., in], the same on every rank  ->  [..., out of this rank], or with gather_output [..., out]
  at::Tensor forward(const at::Tensor& x);
  // [out, in]; every rank calls it.
  at::Tensor whole_weight() const;

  at::Tensor weight, bias;  // [out of this rank, in], [out of this rank]

 private:
  TensorGroup group_;
  ColumnParallelOptions options_;
  int64_t out_;
};
TORCH_MODULE(ColumnParallelLinear);

struct RowParallelOptions {
  bool bias = true;
  bool split_input = false;  // the input is whole on every rank; else a column-parallel layer's output
};

class RowParallelLinearImpl : public torch::nn::Module {
 public:
  RowParallelLinearImpl(int64_t in, int64_t out, comm::ProcessGroup& group, RowParallelOptions options = {});
  // x [..., in of this rank], or with split_input [..., in]  ->  [..., out], the same on every rank
  at::Tensor forward(const at::Tensor& x);
  // [out, in]; every rank calls it.
  at::Tensor whole_weight() const;

  at::Tensor weight, bias;  // [out, in of this rank], [out] the same on every rank and added once

 private:
  TensorGroup group_;
  RowParallelOptions options_;
  int64_t in_;
};
TORCH_MODULE(RowParallelLinear);

// Logits over the same slices come from a linear layer with this weight; vocab_parallel_cross_entropy takes them.
class VocabParallelEmbeddingImpl : public torch::nn::Module {
 public:
  VocabParallelEmbeddingImpl(int64_t vocab, int64_t hidden, comm::ProcessGroup& group);
  // tokens [B,S] int64 in [0, vocab)  ->  [B,S,hidden], the same on every rank
  at::Tensor forward(const at::Tensor& tokens);

  at::Tensor weight;  // [ceil(vocab / ranks), hidden]; rows behind the vocabulary are zero and stay so

 private:
  TensorGroup group_;
  int64_t vocab_;
};
TORCH_MODULE(VocabParallelEmbedding);

}  // namespace lockstep::parallel
