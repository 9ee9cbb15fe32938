// Micro-batches as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/data/corpus.h"
#include "lockstep/data/sampler.h"
#include "lockstep/spec/plan.h"

namespace lockstep::data {

using spec::kIgnoredTarget;

// B: sequences of the micro-batch, S: tokens of a sequence.
struct Batch {
  at::Tensor tokens_BS;   // int64, on the CPU
  at::Tensor targets_BS;  // int64: the token that follows each; kIgnoredTarget where there is none to learn
};

// Every rank opens the whole corpus (files are mapped, not read) and asks for its own micro-batches. Micro-batches are
// numbered over the global batch, as in spec/microbatches.h.
class Batches {
 public:
  // throws InvalidArgument when the data cannot serve the plan; needs no other rank, so that a launcher can try it
  // first
  explicit Batches(const spec::RunPlan& plan);

  // `step` from 0 on, without end.
  Batch train(int64_t step, int64_t microbatch) const;
  int64_t epoch(int64_t step) const { return sampler_.epoch(step); }

  // Validation reads its part from the beginning, sequence after sequence, the same in every validation, for
  // run.validation_batches global batches or as many as there are. The last is filled up with ignored targets, so that
  // every sequence counts once.
  int64_t validation_batches() const;
  Batch validation(int64_t batch, int64_t microbatch) const;

  // "43 files, 5456210 tokens: 40496 training and 2131 validation sequences of 128"
  std::string describe() const;

 private:
  Batch empty_batch() const;
  void fill_row(Batch& batch, int64_t row, int64_t first_token) const;

  int64_t sequence_length_, microbatch_, global_batch_, max_validation_batches_;
  Corpus corpus_;
  Parts parts_;
  Sampler sampler_;
};

}  // namespace lockstep::data
