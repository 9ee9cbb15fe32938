// Z = GeLU(X A) B on several ranks; the lines in which single.cc and parallel.cc differ split A and B over ranks.
#include "lockstep/distributed/init.h"
#include "lockstep/parallel/tensor/modules.h"
#include "training.h"

struct Mlp : torch::nn::Module {
  explicit Mlp(lockstep::ProcessGroup& world) {
    a = register_module("a", lockstep::parallel::ColumnParallelLinear(16, 50, world));
    b = register_module("b", lockstep::parallel::RowParallelLinear(50, 16, world));
  }
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(torch::gelu(a->forward(x))); }
  lockstep::parallel::ColumnParallelLinear a = nullptr;
  lockstep::parallel::RowParallelLinear b = nullptr;
};

int main(int, char** argv) {
  auto world = lockstep::init();
  torch::manual_seed(1);
  Mlp mlp(*world);
  const torch::Tensor z = train(mlp);
  if (world->rank() == 0) write(z, argv[1]);
}
