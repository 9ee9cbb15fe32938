// What verify compares: every step's loss, raw gradients and norm, and what the last step left behind.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/nn/parameters.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::train {

using checkpoint::NamedTensor;

struct StepRecord {
  double loss = 0;
  double grad_norm = 0;
  std::vector<NamedTensor> gradients;  // summed over the global batch, before clipping
};

struct RunRecord {
  std::vector<StepRecord> steps;
  std::vector<NamedTensor> parameters;  // after the last step
  std::vector<NamedTensor> state;       // of the optimizer, after the last step: "layers.0...weight/exp_avg"
};

// Copies of all gradients; an undefined one is recorded as zeros.
std::vector<NamedTensor> copy_gradients(const std::vector<nn::Parameter>& parameters);
std::vector<NamedTensor> copy_weights(const std::vector<nn::Parameter>& parameters);
std::vector<NamedTensor> copy_state(const optim::Optimizer& optimizer);

// One safetensors file, so that a rank process can hand its record to the process that compares.
void write_record(const std::filesystem::path& path, const RunRecord& record);
RunRecord read_record(const std::filesystem::path& path);

// How far a layout is from the reference (docs/verify.md): per tensor max|x - y| / max(max|y|, 1e-3 of the largest
// max|y| over all tensors of its kind).
struct Comparison {
  double max_rel_loss = 0, max_rel_grad = 0, first_rel_grad = 0, max_rel_param = 0, max_rel_state = 0, rel_norm = 0;
  std::string worst_parameter;  // of the gradients; first_rel_grad is of the first step's
  std::string worst_weight;
  bool bitwise = true;  // every gradient, weight and moment ==
};
Comparison compare(const RunRecord& reference, const RunRecord& layout);

}  // namespace lockstep::train
