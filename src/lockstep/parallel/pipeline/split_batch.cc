#include "lockstep/parallel/pipeline/split_batch.h"

#include <ATen/ATen.h>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

namespace {

void check(const at::Tensor& batch, std::string_view what, std::string_view how, int64_t value) {
  if (!batch.defined() || batch.dim() == 0) {
    throw InvalidArgument(
        text(what, ": must be a tensor whose dim 0 is the batch, is ", batch.defined() ? "a scalar" : "undefined"));
  }
  if (value < 1) throw InvalidArgument(Problem{std::string(how), text(value), "must be at least 1", "1"}.message());
}

}  // namespace

std::vector<at::Tensor> split_by_rows(const at::Tensor& batch, int64_t rows, std::string_view what) {
  check(batch, what, "split_size", rows);
  return batch.split(rows);
}

std::vector<at::Tensor> split_evenly(const at::Tensor& batch, int64_t count, std::string_view what) {
  check(batch, what, "microbatches", count);
  if (batch.size(0) < count) {
    throw InvalidArgument(Problem{"microbatches", text(count),
                                  text("every micro-batch needs a row, and ", what, " has ", batch.size(0)),
                                  batch.size(0) > 0 ? text(batch.size(0)) : ""}
                              .message());
  }
  return batch.tensor_split(count);
}

}  // namespace lockstep::parallel
