// What ranks begin with, and what they share beside gradients: a module's parameters and buffers, from rank 0.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Gives every parameter rank 0's values and returns them in the order of registration; of those registered twice one.
//   throws   ProtocolMismatch when the ranks' modules differ
std::vector<NamedTensor> broadcast_parameters(const torch::nn::Module& module, comm::ProcessGroup& group);

// Gives all tensors rank 0's values, with one collective per type.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, comm::ProcessGroup& group);

}  // namespace lockstep::parallel
