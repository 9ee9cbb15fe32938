// Trains twelve layers in one process. parallel.cc trains the same as a pipeline.
//   single OUTPUT
#include "training.h"

int main(int, char** argv) {
  torch::nn::Sequential layers = make_layers(0, kLayers);
  torch::optim::SGD optimizer(layers->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  for (int64_t step = 0; step < 50; ++step) {
    const Batch batch = make_batch(step);
    optimizer.zero_grad();
    torch::Tensor loss = torch::mse_loss(layers->forward(batch.x), batch.y);
    loss.backward();
    optimizer.step();
    if (step % 10 == 9) std::printf("step %ld loss %.4f\n", step + 1, loss.item<double>());
  }
  write(layers, argv[1], 0);
}
