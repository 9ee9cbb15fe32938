#include "lockstep/optim/master_weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::optim {
namespace {

using at::Tensor;

// One weight of the model and its master.
struct Pair {
  explicit Pair(const Tensor& values, at::ScalarType type = at::kBFloat16)
      : master(values.clone()), weight(at::empty_like(values, values.options().dtype(type)).requires_grad_()) {}
  MasterWeights weights() const { return {{{"w", master, true}}, {weight}}; }
  Tensor master, weight;
};

TEST(MasterWeights, AreRoundedIntoTheModelToNearestEven) {
  // bf16 has 8 bits: 1 + 2^-8 lies between 1 and 1 + 2^-7, 1 + 3 * 2^-8 between that and 1 + 2^-6.
  const Pair pair(at::tensor({1.0f, 1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1.1p-8f}));
  const MasterWeights weights = pair.weights();
  const Tensor expected = at::tensor({1.0f, 1.0f, 1 + 0x1p-6f, 1 + 0x1p-7f});
  EXPECT_TRUE(at::equal(pair.weight.detach().to(at::kFloat), expected));
}

// What they are for: each update is less than half of what bf16 can add to 1.
TEST(MasterWeights, KeepUpdatesThatTheModelsTypeWouldLose) {
  const Pair pair(at::ones({4}));
  MasterWeights weights = pair.weights();
  const auto optimizer = make_sgd(weights.masters(), {});
  for (int step = 0; step < 64; ++step) {
    pair.weight.mutable_grad() = at::ones({4}, at::kBFloat16);
    weights.take_gradients();
    optimizer->step(-0x1p-10);
    weights.publish();
  }
  EXPECT_TRUE(at::equal(pair.master, at::full({4}, 1.0625f)));
  EXPECT_TRUE(at::equal(pair.weight.detach(), at::full({4}, 1.0625f).to(at::kBFloat16)));
}

TEST(MasterWeights, TakeGradientsOfTheirTypeWithoutACopyAndWidenOthers) {
  const Pair pair(at::ones({4}));
  MasterWeights weights = pair.weights();
  const Tensor wide = at::full({4}, 0.1f), narrow = wide.to(at::kBFloat16);
  pair.weight.mutable_grad() = wide;
  weights.take_gradients();
  EXPECT_TRUE(weights.masters()[0].tensor.grad().is_same(wide));
  pair.weight.mutable_grad() = narrow;
  weights.take_gradients();
  EXPECT_TRUE(at::equal(weights.masters()[0].tensor.grad(), narrow.to(at::kFloat)));
  weights.drop_gradients();
  EXPECT_FALSE(weights.masters()[0].tensor.grad().defined());
  EXPECT_TRUE(pair.weight.grad().defined());
  pair.weight.mutable_grad().reset();
  weights.take_gradients();
  EXPECT_FALSE(weights.masters()[0].tensor.grad().defined()) << "a weight that nobody used keeps its value";
}

TEST(MasterWeights, OfFp32AreTheWeightsThemselves) {
  const Tensor weight = at::ones({4}).requires_grad_();
  MasterWeights weights({{"w", weight, true}}, {weight});
  weight.mutable_grad() = at::ones({4});
  weights.take_gradients();
  weights.publish();
  EXPECT_TRUE(weights.masters()[0].tensor.is_same(weight));
  EXPECT_TRUE(weights.masters()[0].tensor.grad().defined());
}

}  // namespace
}  // namespace lockstep::optim
