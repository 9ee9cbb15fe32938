// Forward and backward of a pipeline of two rank processes against one process: 8 MLP blocks, 8 micro-batches, one
// intra-op thread each. What the bubble leaves, K M / (M + (K - 1) / v), and what two ranks reach here that have as
// much work and nothing to wait for, are printed beside it.
//   lockstep launch --ranks 2 -- executor_step [KIND [ROWS [WIDTH [ROUNDS]]]]      KIND: gpipe, 1f1b, interleaved, ...
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/init.h"
#include "lockstep/parallel/pipeline/pipeline_schedule.h"
#include "lockstep/schedule/generators.h"

namespace {

using torch::Tensor;
constexpr int kBlocks = 8, kMicrobatches = 8;

torch::nn::Sequential make_blocks(int64_t width, int count) {
  torch::nn::Sequential blocks;
  for (int i = 0; i < count; ++i) {
    blocks->push_back(torch::nn::Linear(width, 4 * width));
    blocks->push_back(torch::nn::GELU());
    blocks->push_back(torch::nn::Linear(4 * width, width));
  }
  return blocks;
}

Tensor mean_square(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, target);
}

void forward_and_backward(torch::nn::Sequential& blocks, const Tensor& batch) {
  for (const Tensor& part : batch.tensor_split(kMicrobatches)) {
    const Tensor input = part.detach().requires_grad_();
    (mean_square(blocks->forward(input), part) / kMicrobatches).backward();
  }
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const auto world = lockstep::init();
  const std::string kind = argc > 1 ? argv[1] : "1f1b";
  const int64_t rows = argc > 2 ? std::stoll(argv[2]) : 1024, width = argc > 3 ? std::stoll(argv[3]) : 256;
  const int rounds = argc > 4 ? std::stoi(argv[4]) : 15, ranks = world->size();
  const int chunks = kind == "interleaved" || kind == "looped_bfs" ? 2 : 1;
  at::set_num_threads(1);
  auto whole = make_blocks(width, kBlocks), share = make_blocks(width, kBlocks / ranks);
  std::vector<torch::nn::Sequential> own(static_cast<size_t>(chunks));
  std::vector<lockstep::parallel::PipelineStage> stages;
  for (auto& stage : own) {
    stage = make_blocks(width, kBlocks / ranks / chunks);
    stages.push_back(lockstep::parallel::stage_of(stage));
  }
  lockstep::parallel::PipelineSchedule pipeline(
      lockstep::schedule::make_table(kind, {.ranks = ranks, .microbatches = kMicrobatches, .chunks = chunks}), stages,
      *world);
  const Tensor batch = torch::randn({rows, width});

  // Until the last rank is through; the others sleep where one rank works alone.
  const auto seconds = [&](const auto& body) {
    lockstep::barrier(*world);
    const double start_s = lockstep::now_s();
    body();
    lockstep::barrier(*world);
    return lockstep::now_s() - start_s;
  };
  std::vector<double> pipeline_s, gain, ceiling;
  for (int round = -1; round < rounds; ++round) {
    const double alone_s = seconds([&] {
      if (world->rank() == 0) forward_and_backward(whole, batch);
    });
    const double beside_s = seconds([&] { forward_and_backward(share, batch); });
    const double step_s = seconds([&] { pipeline.step(batch, batch, mean_square); });
    if (round < 0) continue;  // warm-up, which announces shapes
    pipeline_s.push_back(step_s);
    gain.push_back(alone_s / step_s);
    ceiling.push_back(alone_s / beside_s);
  }
  if (world->rank() != 0) return 0;
  const double bubble = static_cast<double>(ranks - 1) / chunks;
  std::printf("%s, %d ranks, rows %ld, width %ld, %d rounds, medians\n", kind.c_str(), ranks, rows, width, rounds);
  std::printf("forward and backward                %8.2f ms\n", 1e3 * median(pipeline_s));
  std::printf("faster than micro-batches in turn   %8.2f\n", median(gain));
  std::printf("bound K M / (M + (K - 1) / v)       %8.2f\n", ranks * kMicrobatches / (kMicrobatches + bubble));
  std::printf("ranks with nothing to wait for      %8.2f\n", median(ceiling));
}
