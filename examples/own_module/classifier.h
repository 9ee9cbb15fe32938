// A small convolutional classifier in plain torch::nn, and data made up for it: which quadrant of a noisy 12x12 picture
// holds the bright spot?
#pragma once

#include <torch/torch.h>

#include <cstdio>

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl() {
    namespace nn = torch::nn;
    layers = register_module(
        "layers", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                                 nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                                 nn::Flatten(), nn::Linear(16 * 3 * 3, 4)));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& images) { return layers->forward(images); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Classifier);

struct Batch {
  torch::Tensor images, quadrants;
};

// The same batch of 32 for everybody who asks for the same step.
inline Batch make_batch(int64_t step) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));
  const torch::Tensor quadrants = torch::randint(0, 4, {32}, generator, torch::kLong);
  torch::Tensor images = torch::randn({32, 1, 12, 12}, generator, torch::kDouble) * 0.5;
  for (int64_t i = 0; i < 32; ++i) {
    const int64_t quadrant = quadrants[i].item<int64_t>();
    images[i][0].narrow(0, quadrant / 2 * 6 + 2, 2).narrow(1, quadrant % 2 * 6 + 2, 2) += 2.0;
  }
  return {images, quadrants};
}

// Every number of every parameter, one a line.
inline void write_weights(const torch::nn::Module& module, const char* path) {
  std::FILE* file = std::fopen(path, "w");
  for (const auto& parameter : module.parameters()) {
    const torch::Tensor flat = parameter.detach().flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) std::fprintf(file, "%.17g\n", flat[i].item<double>());
  }
  std::fclose(file);
}
