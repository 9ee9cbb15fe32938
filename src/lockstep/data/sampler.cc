#include "lockstep/data/sampler.h"

#include "lockstep/base/error.h"
#include "lockstep/data/permutation.h"

namespace lockstep::data {

int64_t TokenRange::sequences(int64_t sequence_length) const {
  return end - begin < 1 ? 0 : (end - begin - 1) / sequence_length;
}

Parts split(const PartsOptions& options) {
  const auto for_validation =
      static_cast<int64_t>(static_cast<double>(options.corpus_size) * options.validation_fraction);
  const int64_t border = options.corpus_size - for_validation;
  const Parts parts{.train = {0, border}, .validation = {border, options.corpus_size}};
  if (parts.train.sequences(options.sequence_length) < options.global_batch) {
    throw InvalidArgument(text("the corpus has ", border, " tokens to train on, too few for one global batch of ",
                               options.global_batch, " sequences of ", options.sequence_length, " tokens: it needs ",
                               options.global_batch * options.sequence_length + 1,
                               "; name more data, or lower train.global_batch or model.sequence"));
  }
  if (options.validation_fraction > 0 && parts.validation.sequences(options.sequence_length) < 1) {
    throw InvalidArgument(text("data.validation_fraction = ", options.validation_fraction, ": leaves ", for_validation,
                               " of ", options.corpus_size, " tokens, less than one sequence of ",
                               options.sequence_length,
                               " and its last target; raise it, or set it and run.validate_every to 0"));
  }
  return parts;
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  LOCKSTEP_CHECK(options.global_batch >= 1 && options.num_sequences >= options.global_batch, "a batch of ",
                 options.global_batch, " from ", options.num_sequences);
}

int64_t Sampler::sequence(int64_t step, int64_t place) const {
  LOCKSTEP_CHECK(step >= 0 && place >= 0 && place < options_.global_batch, "step ", step, ", place ", place);
  const Permutation order(options_.num_sequences, options_.seed, text("sample order ", epoch(step)));
  return order.at(step % steps_per_epoch() * options_.global_batch + place);
}

}  // namespace lockstep::data
