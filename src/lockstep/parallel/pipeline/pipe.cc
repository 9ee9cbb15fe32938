#include "lockstep/parallel/pipeline/pipe.h"

#include <ATen/ATen.h>

#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/split_batch.h"
#include "lockstep/schedule/clock_cycles.h"

namespace lockstep::parallel {

Pipe::Pipe(std::vector<PipelineStage> stages, PipeOptions options)
    : stages_(std::move(stages)),
      options_(std::move(options)),
      workers_(static_cast<int>(stages_.size()), options_.on_call) {
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (!stages_[i].forward) throw InvalidArgument(text("stage ", i, ": has no forward function (see stage_of)"));
  }
  if ((options_.split_size > 0) == (options_.microbatches > 0) || options_.split_size < 0 ||
      options_.microbatches < 0) {
    throw InvalidArgument(text("Pipe: split_size = ", options_.split_size, " and microbatches = ",
                               options_.microbatches, ": one of them must be at least 1 and the other 0"));
  }
}

std::vector<at::Tensor> Pipe::split(const at::Tensor& batch) const {
  return options_.split_size > 0 ? split_by_rows(batch, options_.split_size, "the batch")
                                 : split_evenly(batch, options_.microbatches, "the batch");
}

at::Tensor Pipe::forward(const at::Tensor& batch) {
  std::vector<at::Tensor> values = split(batch);
  for (const schedule::Wave& wave :
       schedule::clock_cycles(static_cast<int>(values.size()), static_cast<int>(stages_.size()))) {
    for (const auto& [microbatch, stage] : wave) {
      // The copy to the stage's device is part of the work: here it would hold up the stages that come after.
      workers_.submit(stage, [&stage = stages_[static_cast<size_t>(stage)],
                              input = values[static_cast<size_t>(microbatch)]] { return stage.run(input); });
    }
    std::exception_ptr first_error;
    for (const auto& [microbatch, stage] : wave) {
      try {
        values[static_cast<size_t>(microbatch)] = workers_.receive(stage);
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
      }
    }
    if (first_error) std::rethrow_exception(first_error);
  }
  return at::cat(values);
}

}  // namespace lockstep::parallel
