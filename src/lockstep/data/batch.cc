#include "lockstep/data/batch.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::data {

Batches::Batches(const spec::RunPlan& plan)
    : sequence_length_(plan.model.sequence),
      microbatch_(plan.train.microbatch),
      global_batch_(plan.train.global_batch),
      max_validation_batches_(plan.run.validation_batches),
      corpus_(plan),
      parts_(split({.corpus_size = corpus_.size(),
                    .validation_fraction = plan.data.validation_fraction,
                    .sequence_length = sequence_length_,
                    .global_batch = global_batch_})),
      sampler_({.num_sequences = parts_.train.sequences(sequence_length_),
                .global_batch = global_batch_,
                .seed = static_cast<uint64_t>(plan.train.seed)}) {}

Batch Batches::empty_batch() const {
  return {at::zeros({microbatch_, sequence_length_}, at::kLong),
          at::full({microbatch_, sequence_length_}, kIgnoredTarget, at::kLong)};
}

void Batches::fill_row(Batch& batch, int64_t row, int64_t first_token) const {
  std::vector<int64_t> tokens(static_cast<size_t>(sequence_length_) + 1);
  corpus_.read(first_token, tokens);
  std::copy(tokens.begin(), tokens.end() - 1, batch.tokens_BS.data_ptr<int64_t>() + row * sequence_length_);
  std::copy(tokens.begin() + 1, tokens.end(), batch.targets_BS.data_ptr<int64_t>() + row * sequence_length_);
}

Batch Batches::train(int64_t step, int64_t microbatch) const {
  Batch batch = empty_batch();
  for (int64_t row = 0; row < microbatch_; ++row) {
    const int64_t sequence = sampler_.sequence(step, microbatch * microbatch_ + row);
    fill_row(batch, row, parts_.train.begin + sequence * sequence_length_);
  }
  return batch;
}

int64_t Batches::validation_batches() const {
  const int64_t all = (parts_.validation.sequences(sequence_length_) + global_batch_ - 1) / global_batch_;
  return max_validation_batches_ == 0 ? all : std::min(all, max_validation_batches_);
}

Batch Batches::validation(int64_t batch, int64_t microbatch) const {
  LOCKSTEP_CHECK(batch >= 0 && batch < validation_batches(), "validation batch ", batch);
  Batch result = empty_batch();
  for (int64_t row = 0; row < microbatch_; ++row) {
    const int64_t sequence = batch * global_batch_ + microbatch * microbatch_ + row;
    if (sequence >= parts_.validation.sequences(sequence_length_)) break;
    fill_row(result, row, parts_.validation.begin + sequence * sequence_length_);
  }
  return result;
}

std::string Batches::describe() const {
  return text(corpus_.describe(), ": ", parts_.train.sequences(sequence_length_), " training and ",
              parts_.validation.sequences(sequence_length_), " validation sequences of ", sequence_length_);
}

}  // namespace lockstep::data
