// What single.cc and parallel.cc share: a deep regression in plain torch::nn, data made up for it, and how it is
// written.
#pragma once

#include <torch/torch.h>

#include <cstdio>
#include <string>

constexpr int kLayers = 12;

// Layers `first` to `last` - 1, the same for everybody who asks for the same ones.
inline torch::nn::Sequential make_layers(int first, int last) {
  torch::nn::Sequential layers;
  for (int layer = first; layer < last; ++layer) {
    torch::manual_seed(100 + layer);
    layers->push_back(torch::nn::Linear(8, 8));
    layers->push_back(torch::nn::Tanh());
  }
  layers->to(torch::kDouble);
  return layers;
}

struct Batch {
  torch::Tensor x, y;
};

// The same batch of 32 for everybody who asks for the same step.
inline Batch make_batch(int64_t step) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));
  const torch::Tensor x = torch::randn({32, 8}, generator, torch::kDouble);
  return {x, (x.roll(1, 1) * x).sin()};
}

// Every weight of layers `first` and on, one a line, into a file named after the first.
inline void write(const torch::nn::Sequential& layers, const std::string& path, int first) {
  std::FILE* file = std::fopen((path + "." + std::to_string(first)).c_str(), "w");
  for (const auto& parameter : layers->parameters()) {
    const torch::Tensor flat = parameter.detach().flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) std::fprintf(file, "%.17g\n", flat[i].item<double>());
  }
  std::fclose(file);
}
