// Pipe's forward against its stages one after the other: 2 stages of 4 MLP blocks, 8 micro-batches, one intra-op
// thread. At best it is K M / (M + K - 1) = 1.78 times as fast; what two threads reach at all here is measured beside
// it.
//   pipe_forward [ROWS [WIDTH [ROUNDS]]]
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/parallel/pipeline/pipe.h"

namespace {

constexpr int kStages = 2, kBlocks = 4, kMicrobatches = 8;

torch::nn::Sequential make_stage(int64_t width) {
  torch::nn::Sequential stage;
  for (int i = 0; i < kBlocks; ++i) {
    stage->push_back(torch::nn::Linear(width, 4 * width));
    stage->push_back(torch::nn::GELU());
    stage->push_back(torch::nn::Linear(4 * width, width));
  }
  return stage;
}

template <class Body>
double seconds(Body&& body) {
  const double start_s = lockstep::now_s();
  body();
  return lockstep::now_s() - start_s;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rows = argc > 1 ? std::stoll(argv[1]) : 1024, width = argc > 2 ? std::stoll(argv[2]) : 256;
  const int rounds = argc > 3 ? std::stoi(argv[3]) : 15;
  at::set_num_threads(1);
  const torch::NoGradGuard no_grad;
  std::vector<torch::nn::Sequential> stages{make_stage(width), make_stage(width)};
  const torch::Tensor batch = torch::randn({rows, width});
  lockstep::parallel::Pipe pipe({lockstep::parallel::stage_of(stages[0]), lockstep::parallel::stage_of(stages[1])},
                                {.microbatches = kMicrobatches});

  const auto whole = [&] { stages[1]->forward(stages[0]->forward(batch)); };
  const auto in_turn = [&] {
    for (const auto& part : batch.tensor_split(kMicrobatches)) stages[1]->forward(stages[0]->forward(part));
  };
  const auto both_stages_at_once = [&] {  // as much work, with nothing to wait for
    std::thread other([&] {
      at::set_num_threads(1);
      const torch::NoGradGuard no_grad_here;
      for (const auto& part : batch.tensor_split(kMicrobatches)) stages[1]->forward(part);
    });
    for (const auto& part : batch.tensor_split(kMicrobatches)) stages[0]->forward(part);
    other.join();
  };
  std::vector<double> over_whole, over_in_turn, ceiling, pipe_s;
  for (int round = -1; round < rounds; ++round) {
    const double whole_s = seconds(whole), in_turn_s = seconds(in_turn), both_s = seconds(both_stages_at_once);
    const double once_s = seconds([&] { pipe.forward(batch); });
    if (round < 0) continue;  // warm-up
    pipe_s.push_back(once_s);
    over_whole.push_back(whole_s / once_s);
    over_in_turn.push_back(in_turn_s / once_s);
    ceiling.push_back(in_turn_s / both_s);
  }
  std::printf("rows %ld, width %ld, %d rounds, medians\n", rows, width, rounds);
  std::printf("pipe                                %8.2f ms\n", 1e3 * median(pipe_s));
  std::printf("faster than the whole batch         %8.2f\n", median(over_whole));
  std::printf("faster than micro-batches in turn   %8.2f\n", median(over_in_turn));
  std::printf("bound K M / (M + K - 1)             %8.2f\n",
              1.0 * kStages * kMicrobatches / (kMicrobatches + kStages - 1));
  std::printf("two threads with nothing to wait for %7.2f\n", median(ceiling));
}
