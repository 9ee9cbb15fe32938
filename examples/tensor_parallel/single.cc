// Z = GeLU(X A) B on one process; the lines in which single.cc and parallel.cc differ split A and B over ranks.
#include "training.h"

struct Mlp : torch::nn::Module {
  Mlp() {
    a = register_module("a", torch::nn::Linear(16, 50));
    b = register_module("b", torch::nn::Linear(50, 16));
  }
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(torch::gelu(a->forward(x))); }
  torch::nn::Linear a = nullptr;
  torch::nn::Linear b = nullptr;
};

int main(int, char** argv) {
  torch::manual_seed(1);
  Mlp mlp;
  const torch::Tensor z = train(mlp);
  write(z, argv[1]);
}
