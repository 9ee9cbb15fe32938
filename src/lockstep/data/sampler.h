// Which tokens a step trains on, as a function of the seed and the step alone: not of the ranks, the micro-batch or
// where the run was resumed.
//
// The tokens of the training part are cut into sequences that do not overlap; an epoch is a random order of them. A
// global batch never spans two epochs: what is left at the end of an epoch, less than one global batch, is not used in
// it (another order leaves out others). So every rank is in the same epoch, and no sequence comes twice in a batch.
//
//   10 sequences, global batch 6:   step 0: epoch 0, 6 of 10    step 1: epoch 1, 6 of 10    ...
#pragma once

#include <cstdint>

namespace lockstep::data {

// Tokens [begin, end) of a corpus.
struct TokenRange {
  int64_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;

  // Whole sequences in it; each needs one token more than it is long, for the target of its last, shared with the next.
  int64_t sequences(int64_t sequence_length) const;
};

// The corpus's end is for validation, what is before it for training; no token is in both.
struct Parts {
  TokenRange train, validation;
};

struct PartsOptions {
  int64_t corpus_size = 0;  // tokens
  double validation_fraction = 0;
  int64_t sequence_length = 1;
  int64_t global_batch = 1;
};

// throws InvalidArgument when the training part has no whole global batch or the validation part, unless its fraction
// is 0,
//        no whole sequence
Parts split(const PartsOptions& options);

struct SamplerOptions {
  int64_t num_sequences = 1;  // at least global_batch
  int64_t global_batch = 1;
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);

  int64_t steps_per_epoch() const { return options_.num_sequences / options_.global_batch; }
  int64_t epoch(int64_t step) const { return step / steps_per_epoch(); }

  // Which sequence stands at `place` (0 .. global_batch - 1) of the step's global batch.
  int64_t sequence(int64_t step, int64_t place) const;

 private:
  SamplerOptions options_;
};

}  // namespace lockstep::data
