// The documents' first exercise of data parallelism: a linear model on 64 samples, gradient descent for 100 steps, on
// four ranks that see 16 samples each, equal to one that sees all.
//   lockstep launch --ranks 4 -- linear_model
#include <torch/torch.h>

#include <cstdio>

#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/init.h"

int main() {
  auto world = lockstep::init();
  torch::manual_seed(0);
  const torch::Tensor X = torch::randn({64, 4}, torch::kDouble),
                      truth = torch::tensor({1.0, -2.0, 3.0, 0.5}, torch::kDouble);
  const torch::Tensor y = X.matmul(truth) + 0.1 * torch::randn({64}, torch::kDouble);
  const auto gradient = [](const torch::Tensor& w, const torch::Tensor& X, const torch::Tensor& y) {
    return 2.0 / static_cast<double>(X.size(0)) * X.t().matmul(X.matmul(w) - y);  // of the mean squared error
  };
  const torch::Tensor my_X = X.chunk(world->size())[world->rank()], my_y = y.chunk(world->size())[world->rank()];

  torch::Tensor single = torch::zeros({4}, torch::kDouble), parallel = single.clone();
  for (int step = 0; step < 100; ++step) {
    single -= 0.1 * gradient(single, X, y);
    torch::Tensor mine = gradient(parallel, my_X, my_y);
    lockstep::all_reduce(mine, *world, lockstep::Reduction::average);
    parallel -= 0.1 * mine;
  }
  const double difference = (single - parallel).abs().max().item<double>();
  if (world->rank() == 0) std::printf("ranks %d, steps 100, largest difference %.1e\n", world->size(), difference);
  return difference < 1e-10 ? 0 : 1;
}
