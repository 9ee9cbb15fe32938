// Our side of zero_parity_test.py, one of its ranks: trains on given batches with sharded states.
//
//   zero_peer FOLDER ZERO STEPS
//
// FOLDER holds config.json, weights, and batches.safetensors with tokens and targets, [N,B,S] each: a batch a step.
// Each rank runs one micro-batch of B / ranks sequences. Rank 0 writes losses [STEPS] to zero.safetensors.
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/init.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using at::Tensor;

// The numbers are those of zero_parity_test.py.
spec::RunPlan plan_of(const std::string& folder, int64_t zero, int64_t steps, const Tensor& tokens_NBS, int ranks) {
  spec::RunPlan plan;
  plan.model = checkpoint::read_model_spec(folder);
  plan.model.weights = folder;
  plan.data.format = spec::DataFormat::synthetic;
  plan.train.steps = steps;
  plan.train.global_batch = tokens_NBS.size(1);
  plan.train.microbatch = tokens_NBS.size(1) / ranks;
  plan.train.lr = 1e-3;
  plan.train.decay = spec::Decay::none;
  plan.train.clip_norm = 1;
  plan.parallel.zero = zero;
  plan.parallel.bucket_mb = 0.01;
  plan.run.validate_every = 0;
  return plan;
}

void run(const std::string& folder, int64_t zero, int64_t steps) {
  const auto world = init();
  Tensor tokens_NBS, targets_NBS;
  for (const checkpoint::NamedTensor& named : checkpoint::read_safetensors(folder + "/batches.safetensors")) {
    (named.name == "tokens" ? tokens_NBS : targets_NBS) = named.tensor;
  }
  const spec::RunPlan plan = plan_of(folder, zero, steps, tokens_NBS, world->size());
  const auto source = [&](int64_t step, int64_t microbatch) {
    const auto part = [&](const Tensor& batches_NBS) {
      return batches_NBS[step].narrow(0, microbatch * plan.train.microbatch, plan.train.microbatch).contiguous();
    };
    return data::Batch{part(tokens_NBS), part(targets_NBS)};
  };
  train::Trainer trainer(plan, *world, {.source = source});
  Tensor losses = at::zeros({steps}, at::kDouble), norms = at::zeros({steps}, at::kDouble);
  for (int64_t step = 0; step < steps; ++step) {
    const train::StepReport report = trainer.step();
    losses[step] = report.loss;
    norms[step] = report.grad_norm;
  }
  if (world->rank() == 0) {
    checkpoint::write_safetensors(folder + "/zero.safetensors", {{"losses", losses}, {"norms", norms}});
  }
  barrier(*world);
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "zero_peer FOLDER ZERO STEPS\n");
    return 2;
  }
  try {
    lockstep::run(arguments[1], std::stoll(arguments[2]), std::stoll(arguments[3]));
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.type_name(), error.what());
    return error.exit_code();
  }
  return 0;
}
