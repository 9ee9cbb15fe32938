#include "lockstep/parallel/tensor/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/parallel/tensor/modules.h"

namespace lockstep::parallel {
namespace {

using at::Tensor;

void on_ranks(int ranks, const std::function<void(comm::ProcessGroup&)>& body) {
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& group) {
    at::set_num_threads(1);
    body(group);
  });
}

// The same on every thread that asks with the same seed.
Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

void expect_near(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_LE((actual - expected).abs().max().item<double>(), 1e-12) << what;
}

// GRAD-02: with a bias added on every rank, y is [21, 41] on two ranks.
TEST(RowLinear, AddsItsBiasOnce) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](comm::ProcessGroup& ranks_group) {
      const TensorGroup group(ranks_group);
      const mesh::Range own = mesh::split(2, {group.rank(), group.size()});
      const Tensor weight = at::eye(2, at::kDouble).narrow(1, own.offset, own.size).clone().requires_grad_();
      const Tensor bias = torch::tensor({10.0, 20.0}).requires_grad_();
      const Tensor x = at::ones({1, own.size}, at::kDouble).requires_grad_();
      const Tensor y = row_linear(x, {weight, bias}, group, "y");
      EXPECT_TRUE(at::equal(y, torch::tensor({{11.0, 21.0}}))) << y;
      y.sum().backward();
      EXPECT_TRUE(at::equal(bias.grad(), at::ones({2}, at::kDouble))) << bias.grad();
    });
  }
}

struct Sizes {
  int64_t hidden = 6, inner = 0;
};

// y = gelu(x A^T + a) B^T + b on one process: y and the gradients of x, A, a, B, b for the loss sum(y * r).
std::vector<Tensor> reference(Sizes sizes) {
  std::vector<Tensor> leaves;
  const std::vector<std::vector<int64_t>> shapes = {
      {2, 5, sizes.hidden}, {sizes.inner, sizes.hidden}, {sizes.inner}, {sizes.hidden, sizes.inner}, {sizes.hidden}};
  for (size_t i = 0; i < shapes.size(); ++i) leaves.push_back(random(shapes[i], i).requires_grad_());
  const Tensor y = at::linear(at::gelu(at::linear(leaves[0], leaves[1], leaves[2])), leaves[3], leaves[4]);
  (y * random(y.sizes(), 9)).sum().backward();
  std::vector<Tensor> result = {y.detach()};
  for (const Tensor& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

// The same on ranks; with sequence parallelism x and y are this rank's positions, and so is b's gradient.
void expect_equals_reference(Sizes sizes, comm::ProcessGroup& ranks, TensorGroupOptions options) {
  const std::string what = text(ranks.size(), " ranks, inner ", sizes.inner, ", overlap ", options.overlap,
                                ", sequence parallel ", options.sequence_parallel);
  const std::vector<Tensor> expected = reference(sizes);
  const TensorGroup group(ranks, options);
  const mesh::Range own = mesh::split(sizes.inner, {ranks.rank(), ranks.size()});
  const auto positions = options.sequence_parallel ? group.positions() : mesh::Range{0, 5};
  const auto slice = [](const Tensor& whole, int64_t dim, mesh::Range range) {
    return whole.narrow(dim, range.offset, range.size).clone(at::MemoryFormat::Contiguous);
  };
  const Tensor x = slice(random({2, 5, sizes.hidden}, 0), 1, positions).requires_grad_();
  const Tensor a = slice(random({sizes.inner, sizes.hidden}, 1), 0, own).requires_grad_();
  const Tensor a_bias = slice(random({sizes.inner}, 2), 0, own).requires_grad_();
  const Tensor b = slice(random({sizes.hidden, sizes.inner}, 3), 1, own).requires_grad_();
  const Tensor b_bias = random({sizes.hidden}, 4).requires_grad_();
  const nn::Projection in{a, a_bias};
  const Tensor y = row_linear(at::gelu(column_linears(x, {&in, 1}, group, "in").front()), {b, b_bias}, group, "out");
  (y * slice(random({2, 5, sizes.hidden}, 9), 1, positions)).sum().backward();
  expect_near(y.detach(), slice(expected[0], 1, positions), what + ": y");
  expect_near(x.grad(), slice(expected[1], 1, positions), what + ": x");
  expect_near(a.grad(), slice(expected[2], 0, own), what + ": A");
  expect_near(a_bias.grad(), slice(expected[3], 0, own), what + ": a");
  expect_near(b.grad(), slice(expected[4], 1, own), what + ": B");
  const Tensor weights = random({2, 5, sizes.hidden}, 9);
  expect_near(b_bias.grad(), slice(weights, 1, positions).sum({0, 1}), what + ": b");
}

TEST(ColumnThenRow, EqualOneProcessForwardAndBackward) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const bool overlap : {true, false}) {
        on_ranks(ranks, [&](comm::ProcessGroup& group) {
          const TensorGroupOptions options{sequence_parallel, 5, overlap};
          for (const int64_t inner : {8, 7, 4}) expect_equals_reference({.inner = inner}, group, options);
        });
      }
    }
  }
}

TEST(EnterAndLeave, AreEachOthersBackward) {
  for (const bool sequence_parallel : {false, true}) {
    on_ranks(3, [&](comm::ProcessGroup& ranks) {
      const TensorGroup group(ranks, {.sequence_parallel = sequence_parallel, .sequence = 4});
      const auto positions = sequence_parallel ? group.positions() : mesh::Range{0, 4};
      const Tensor part = at::ones({2, positions.size, 3}, at::kDouble).requires_grad_();
      const Tensor inside = enter_split(part, group, "x");
      EXPECT_TRUE(at::equal(inside, at::ones({2, 4, 3}, at::kDouble)));
      const Tensor outside = leave_split(inside, group, "y");
      EXPECT_TRUE(at::equal(outside, at::full({2, positions.size, 3}, 3.0, at::kDouble)));
      outside.sum().backward();
      EXPECT_TRUE(at::equal(part.grad(), at::full({2, positions.size, 3}, 3.0, at::kDouble)));
    });
  }
}

TEST(Modules, StartAsTorchsLayersDoWhateverTheRanks) {
  torch::manual_seed(3);
  const torch::nn::Linear a(5, 7), b(7, 5);
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](comm::ProcessGroup& group) {
      if (group.rank() == 0) torch::manual_seed(3);
      ColumnParallelLinear column(5, 7, group);
      EXPECT_EQ(column->weight.size(0), mesh::split(7, {group.rank(), ranks}).size);
      const Tensor whole = column->whole_weight();
      if (ranks == 1) EXPECT_TRUE(at::equal(whole, a->weight));
      // GRAD-22: the spread is the whole layer's, 1 / sqrt(inputs), not the slice's.
      RowParallelLinear row(4096, 3, group);
      EXPECT_NEAR(row->whole_weight().abs().max().item<double>(), 1 / std::sqrt(4096.0), 1e-4);
      EXPECT_TRUE(row->weight.requires_grad() && column->bias.requires_grad());
    });
  }
}

TEST(Modules, GatherAndSplitOnRequest) {
  on_ranks(3, [&](comm::ProcessGroup& group) {
    ColumnParallelLinear column(5, 7, group, ColumnParallelOptions{.gather_output = true});
    RowParallelLinear row(7, 4, group, RowParallelOptions{.split_input = true});
    column->to(torch::kDouble);
    row->to(torch::kDouble);
    const Tensor x = random({2, 5}, 1).requires_grad_(), expected_x = random({2, 5}, 1).requires_grad_();
    const Tensor hidden = column->forward(x);
    ASSERT_EQ(hidden.sizes(), (std::vector<int64_t>{2, 7}));
    const Tensor y = row->forward(hidden);
    const Tensor whole_bias = hidden.detach() - at::linear(x.detach(), column->whole_weight());
    const Tensor expected = at::linear(at::linear(expected_x, column->whole_weight()) + whole_bias, row->whole_weight(),
                                       row->bias.detach());
    expect_near(y.detach(), expected.detach(), "y");
    y.square().sum().backward();
    expected.square().sum().backward();
    expect_near(x.grad(), expected_x.grad(), "x");
  });
}

}  // namespace
}  // namespace lockstep::parallel
