// A batch cut into micro-batches along dim 0. Micro-batches need not be equally large.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace lockstep::parallel {

// Micro-batches of `rows` rows, the last with what is left: 10 rows by 4 are 4, 4, 2. A batch without rows is one
// micro-batch without rows. Views of the batch.
//   throws   InvalidArgument, naming `what`, for a batch without dims or rows < 1
std::vector<at::Tensor> split_by_rows(const at::Tensor& batch, int64_t rows, std::string_view what);

// `count` micro-batches whose rows differ by one at most, the larger first: 8 rows in 3 are 3, 3, 2. Views of the
// batch.
//   throws   InvalidArgument, naming `what`, for a batch without dims, count < 1 or fewer rows than that
std::vector<at::Tensor> split_evenly(const at::Tensor& batch, int64_t count, std::string_view what);

}  // namespace lockstep::parallel
