// Our side of parity_test.py: takes a folder of weights, computes logits, trains a few steps and saves the weights.
//
//   parity_peer FOLDER load|initial fp32|fp64|bf16 STEPS MAX_SHARD_BYTES
//
// FOLDER holds config.json, weights (to start from, unless from initial values), and batches.safetensors with tokens
// and targets, [N,B,S] each: a batch a step. Written there: result.safetensors with logits (of the first batch, before
// training), losses and norms [STEPS], and every parameter (under bf16 its fp32 master) before and after under our
// names; saved/ with the weights after training, as save_weights writes them.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/spec/names.h"
#include "lockstep/train/build.h"

namespace lockstep {
namespace {

using at::Tensor;
using checkpoint::NamedTensor;

// The same numbers stand in parity_test.py.
constexpr double kLearningRate = 1e-3, kMaxNorm = 1.0;
constexpr optim::AdamWOptions kAdamW{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

struct Batches {
  Tensor tokens_NBS, targets_NBS;
};

Batches read_batches(const std::filesystem::path& folder) {
  Batches batches;
  for (const NamedTensor& named : checkpoint::read_safetensors(folder / "batches.safetensors")) {
    (named.name == "tokens" ? batches.tokens_NBS : batches.targets_NBS) = named.tensor;
  }
  return batches;
}

void add_parameters(std::vector<NamedTensor>& result, const std::string& prefix,
                    const std::vector<nn::Parameter>& parameters) {
  for (const nn::Parameter& parameter : parameters) {
    result.push_back({prefix + parameter.spec.name, parameter.tensor.detach().clone()});
  }
}

// One optimizer step per batch; returns the losses and the gradient's norms.
std::pair<Tensor, Tensor> train_steps(const train::Built& built, const Batches& batches, int64_t steps,
                                      const nn::Context& context) {
  optim::MasterWeights master_weights = train::tie(built);
  const auto optimizer = optim::make_adamw(master_weights.masters(), kAdamW);
  Tensor losses = at::zeros({steps}, at::kDouble), norms = at::zeros({steps}, at::kDouble);
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor tokens_BS = batches.tokens_NBS[step], targets_BS = batches.targets_NBS[step];
    const double valid = static_cast<double>(nn::count_valid(targets_BS));
    const Tensor loss = built.model->loss_sum(tokens_BS, targets_BS, context) / valid;
    loss.backward();
    master_weights.take_gradients();
    std::vector<Tensor> gradients;
    for (const optim::Parameter& master : master_weights.masters()) gradients.push_back(master.tensor.grad());
    losses[step] = loss.item<double>();
    norms[step] = optim::clip_by_global_norm(gradients, kMaxNorm);
    optimizer->step(kLearningRate);
    master_weights.publish();
    for (const nn::Parameter& parameter : built.model->parameter_list()) parameter.tensor.mutable_grad().reset();
  }
  return {losses, norms};
}

struct Options {
  std::filesystem::path folder;
  bool load = true;
  spec::Precision precision = spec::Precision::fp32;
  int64_t steps = 0;
  int64_t max_shard_bytes = 0;
};

void run(const Options& options) {
  const std::filesystem::path& folder = options.folder;
  at::set_num_threads(1);
  spec::RunPlan plan;
  plan.model = checkpoint::read_model_spec(folder);
  if (options.load) plan.model.weights = folder;
  plan.train.precision = options.precision;
  const train::Built built = train::build(plan, at::kCPU);
  const nn::Transformer& model = *built.model;

  nn::LocalSeams seams(/*seed=*/1);
  const nn::Context context{seams.seams(), {}};
  const Batches batches = read_batches(folder);
  const Tensor logits = model.logits(model.hidden(batches.tokens_NBS[0], context), context).detach();
  std::vector<NamedTensor> result = {{"logits", logits}};
  add_parameters(result, "before/", built.masters);
  const auto [losses, norms] = train_steps(built, batches, options.steps, context);
  result.push_back({"losses", losses});
  result.push_back({"norms", norms});
  add_parameters(result, "after/", built.masters);
  checkpoint::write_safetensors(folder / "result.safetensors", result);
  checkpoint::save_weights(folder / "saved", plan.model, built.masters, {.max_shard_bytes = options.max_shard_bytes});
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  if (count != 6) {
    std::fprintf(stderr, "parity_peer FOLDER load|initial fp32|fp64|bf16 STEPS MAX_SHARD_BYTES\n");
    return 2;
  }
  try {
    lockstep::run({.folder = arguments[1],
                   .load = std::string(arguments[2]) == "load",
                   .precision = lockstep::spec::from_name<lockstep::spec::Precision>(arguments[3]).value(),
                   .steps = std::stoll(arguments[4]),
                   .max_shard_bytes = std::stoll(arguments[5])});
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.type_name(), error.what());
    return error.exit_code();
  }
  return 0;
}
