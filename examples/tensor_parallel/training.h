// What single.cc and parallel.cc share: data made up for a regression, and the training loop.
#pragma once

#include <torch/torch.h>

#include <cstdio>

struct Batch {
  torch::Tensor x, z;
};

// The same batch of 32 for everybody who asks for the same step.
inline Batch make_batch(int64_t step) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));
  const torch::Tensor x = torch::randn({32, 16}, generator, torch::kDouble);
  return {x, (x.roll(1, 1) * x).sin()};
}

// Trains the module and returns what it makes of a batch that it has not seen.
template <class Mlp>
torch::Tensor train(Mlp& mlp) {
  mlp.to(torch::kDouble);
  torch::optim::AdamW optimizer(mlp.parameters(), torch::optim::AdamWOptions(1e-2));
  for (int64_t step = 0; step < 100; ++step) {
    const Batch batch = make_batch(step);
    optimizer.zero_grad();
    torch::Tensor loss = torch::mse_loss(mlp.forward(batch.x), batch.z);
    loss.backward();
    optimizer.step();
    if (step % 20 == 19) std::printf("step %ld loss %.4f\n", step + 1, loss.item<double>());
  }
  return mlp.forward(make_batch(100).x).detach();
}

// Every number, one a line.
inline void write(const torch::Tensor& tensor, const char* path) {
  std::FILE* file = std::fopen(path, "w");
  const torch::Tensor flat = tensor.flatten();
  for (int64_t i = 0; i < flat.numel(); ++i) std::fprintf(file, "%.17g\n", flat[i].item<double>());
  std::fclose(file);
}
