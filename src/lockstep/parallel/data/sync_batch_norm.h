// Batch normalisation over the samples of all ranks: equal to one process that sees the whole batch.
#pragma once

#include <torch/nn/module.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

struct SyncBatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;  // of the running statistics
};

// For inputs [N, C, ...]. Statistics are combined from every rank's mean and squared deviations; ranks may hold
// different numbers of samples, also none. In eval mode the running statistics are used and nothing is communicated.
// Parameters `weight`, `bias` [C] and buffers `running_mean`, `running_var` [C], `num_batches_tracked` are named as
// torch::nn::BatchNorm's, so weights move between the two.
//   sends    forward 2C + 1, backward 2C elements per rank
//   throws   InvalidArgument when the input does not have C channels or all ranks together hold one value per channel
//   source   Ioffe and Szegedy 2015; the combination of moments: Chan, Golub and LeVeque 1979
class SyncBatchNorm : public torch::nn::Module {
 public:
  // `group` must outlive the module. Every rank calls forward and backward the same number of times.
  SyncBatchNorm(int64_t channels, comm::ProcessGroup& group, SyncBatchNormOptions options = {});
  at::Tensor forward(const at::Tensor& input_NCx);

  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  comm::ProcessGroup& group_;
  SyncBatchNormOptions options_;
};

}  // namespace lockstep::parallel
