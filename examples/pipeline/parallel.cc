// Trains the twelve layers of single.cc as a pipeline: each rank has one stage of them, or several.
//   lockstep launch --ranks 4 -- parallel OUTPUT 1f1b
//   lockstep launch --ranks 2 -- parallel OUTPUT interleaved 2        two stages on each rank
#include "lockstep/distributed/init.h"
#include "lockstep/parallel/pipeline/pipeline_schedule.h"
#include "lockstep/schedule/generators.h"
#include "training.h"

int main(int argc, char** argv) {
  const auto world = lockstep::init();
  const int chunks_per_rank = argc > 3 ? std::stoi(argv[3]) : 1;
  const auto table =
      lockstep::schedule::make_table(argv[2], {.ranks = world->size(), .microbatches = 12, .chunks = chunks_per_rank});

  std::vector<int> first_layers;
  std::vector<torch::nn::Sequential> chunks;
  std::vector<lockstep::parallel::PipelineStage> stages;
  std::vector<torch::Tensor> parameters;
  for (int stage = 0; stage < table.stages(); ++stage) {
    if (table.rank_of_stage[static_cast<size_t>(stage)] != world->rank()) continue;
    first_layers.push_back(kLayers * stage / table.stages());
    chunks.push_back(make_layers(first_layers.back(), kLayers * (stage + 1) / table.stages()));
    stages.push_back(lockstep::parallel::stage_of(chunks.back()));
    for (const auto& parameter : chunks.back()->parameters()) parameters.push_back(parameter);
  }
  lockstep::parallel::PipelineSchedule pipeline(table, stages, *world);

  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.5).momentum(0.9));
  const auto mse = [](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  for (int64_t step = 0; step < 50; ++step) {
    const Batch batch = make_batch(step);
    optimizer.zero_grad();
    const torch::Tensor loss = pipeline.step(batch.x, batch.y, mse).loss;
    optimizer.step();
    if (loss.defined() && step % 10 == 9) std::printf("step %ld loss %.4f\n", step + 1, loss.item<double>());
  }
  for (size_t i = 0; i < chunks.size(); ++i) write(chunks[i], argv[1], first_layers[i]);
}
