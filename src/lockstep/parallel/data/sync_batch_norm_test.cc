#include "lockstep/parallel/data/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/parallel/data/data_parallel.h"

namespace lockstep::parallel {
namespace {

struct Outcome {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_var;
};

const at::Tensor& input() {
  static const at::Tensor x = [] {
    const auto generator = at::detail::createCPUGenerator(9);
    return torch::randn({10, 3, 4, 2}, generator, torch::kDouble) * 2 + 5;
  }();
  return x;
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& weights) {
  return (output.pow(3) * weights).sum();
}

Outcome one_process() {
  torch::nn::BatchNorm2d norm(3);
  norm->to(torch::kDouble);
  at::Tensor x = input().clone().requires_grad_();
  at::Tensor y = norm(x);
  loss_of(y, input()).backward();
  return {y.detach(), x.grad(), norm->weight.grad(), norm->bias.grad(), norm->running_mean, norm->running_var};
}

// Rows [begin, end) of each rank, unequal numbers and none among them.
TEST(SyncBatchNorm, EqualsOneProcess) {
  const Outcome expected = one_process();
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{10}, {5, 5}, {7, 3}, {4, 0, 6}}) {
    comm::run_ranks(
        static_cast<int>(rows.size()), {.deadline = std::chrono::seconds(20)}, [&](comm::ProcessGroup& world) {
          at::set_num_threads(1);
          SyncBatchNorm norm(3, world);
          norm.to(torch::kDouble);
          DataParallel data_parallel(norm, world, {.reduction = comm::Reduction::sum});
          int64_t begin = 0;
          for (int rank = 0; rank < world.rank(); ++rank) begin += rows[static_cast<size_t>(rank)];
          const int64_t count = rows[static_cast<size_t>(world.rank())];
          at::Tensor x = input().narrow(0, begin, count).clone().requires_grad_();
          const at::Tensor y = norm.forward(x);
          loss_of(y, input().narrow(0, begin, count)).backward();

          const auto close = [](const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-10, 1e-10); };
          EXPECT_TRUE(close(y, expected.output.narrow(0, begin, count)));
          EXPECT_TRUE(close(x.grad(), expected.input_gradient.narrow(0, begin, count)));
          EXPECT_TRUE(close(norm.weight.grad(), expected.weight_gradient));
          EXPECT_TRUE(close(norm.bias.grad(), expected.bias_gradient));
          EXPECT_TRUE(close(norm.running_mean, expected.running_mean));
          EXPECT_TRUE(close(norm.running_var, expected.running_var));

          norm.eval();
          torch::nn::BatchNorm2d plain(3);
          plain->to(torch::kDouble);
          plain->running_mean.copy_(norm.running_mean);
          plain->running_var.copy_(norm.running_var);
          plain->eval();
          EXPECT_TRUE(close(norm.forward(input()), plain(input())));
        });
  }
}

TEST(SyncBatchNorm, RefusesWrongInputs) {
  comm::run_ranks(1, {}, [](comm::ProcessGroup& world) {
    SyncBatchNorm norm(3, world);
    EXPECT_THROW(norm.forward(torch::zeros({2, 4})), InvalidArgument);
    EXPECT_THROW(norm.forward(torch::zeros({1, 3})), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::parallel
