// A vocabulary split over ranks: rank r of t holds the rows [r * P, (r + 1) * P) of the embedding and of the head,
// P = ceil(V / t). Rows from V on are padding: no token names them, their probability is zero, and so is their
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/parallel/tensor/tensor_group.h"
#include "lockstep/spec/model.h"

namespace lockstep::parallel {

// Rows of a vocabulary that each rank holds, padding included.
int64_t vocabulary_slice(int64_t vocab, int ranks);

// The rows of `tokens`, put together between the split parts.
//   tokens [B,S] int64 in [0, vocab); table [P,H]  ->  [B,S,H], or [B,S_r,H] with sequence parallelism
//   throws  InvalidArgument for a token outside of the vocabulary or a table of another height
at::Tensor vocab_parallel_embedding(const at::Tensor& tokens, const at::Tensor& table, int64_t vocab,
                                    const TensorGroup& group, const std::string& tag = "embedding");

struct VocabularyOptions {
  int64_t vocab = 0;
  int64_t ignored = spec::kIgnoredTarget;  // a target whose loss and gradient are zero
};

// Cross entropy of each token over logits that no rank has whole: ranks exchange three numbers a token (the largest
// logit, the sum of exponentials, the target's logit), and backward exchanges nothing.
//   logits [..., P] of this rank; targets [...] int64, the same on every rank  ->  [...], the same on every rank
//   throws  InvalidArgument for logits of another width (gathered ones, say) or a target outside of the vocabulary
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                        const VocabularyOptions& options, comm::ProcessGroup& group,
                                        const std::string& tag = "cross entropy");

}  // namespace lockstep::parallel
