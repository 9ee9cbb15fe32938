// Our side of tensor_parallel_test.py: trains from a folder of weights in a layout and leaves the losses.
//
//   layout_peer FOLDER LAYOUT STEPS
//
// FOLDER holds config.json, weights, and batches.safetensors with tokens and targets, [N,B,S] each: a batch a step.
// Written there: losses.safetensors with losses [STEPS], from rank 0.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/spec/layout.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

spec::RunPlan plan_of(const std::filesystem::path& folder, const at::Tensor& tokens_NBS, int64_t steps) {
  spec::RunPlan plan;
  plan.model = checkpoint::read_model_spec(folder);
  plan.model.weights = folder.string();
  plan.data.format = spec::DataFormat::synthetic;
  plan.train.steps = steps;
  plan.train.global_batch = plan.train.microbatch = tokens_NBS.size(1);
  // The same numbers stand in tensor_parallel_test.py.
  plan.train.lr = 1e-3;
  plan.train.decay = spec::Decay::none;
  plan.train.weight_decay = 0;
  plan.train.clip_norm = 0;
  return plan;
}

void run(const std::filesystem::path& folder, const spec::Layout& layout, int64_t steps) {
  data::Batch batches;  // [N,B,S]
  for (const auto& [name, tensor] : checkpoint::read_safetensors(folder / "batches.safetensors")) {
    (name == "tokens" ? batches.tokens_BS : batches.targets_BS) = tensor;
  }
  const spec::RunPlan plan = spec::apply(layout, plan_of(folder, batches.tokens_BS, steps));
  at::Tensor losses = at::zeros({steps}, at::kDouble);
  comm::run_ranks(layout.world_size(), {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    const auto batch_of = [&](int64_t step, int64_t) {
      return data::Batch{batches.tokens_BS[step], batches.targets_BS[step]};
    };
    train::Trainer trainer(plan, world, {.source = batch_of});
    for (int64_t step = 0; step < steps; ++step) {
      const double loss = trainer.step().loss;
      if (world.rank() == 0) losses[step] = loss;
    }
  });
  checkpoint::write_safetensors(folder / "losses.safetensors", {{"losses", losses}});
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "layout_peer FOLDER LAYOUT STEPS\n");
    return 2;
  }
  try {
    lockstep::run(arguments[1], lockstep::spec::parse_layout(arguments[2]), std::stoll(arguments[3]));
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.type_name(), error.what());
    return error.exit_code();
  }
  return 0;
}
