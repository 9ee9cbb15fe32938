#include "lockstep/optim/clip.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace lockstep::optim {
namespace {

using at::Tensor;

std::vector<Tensor> random_gradients(at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(1);
  return {at::randn({30, 7}, dtype), Tensor(), at::randn({11}, dtype)};
}

double plain_norm(const std::vector<Tensor>& gradients) {
  return std::sqrt(
      (gradients[0].to(at::kDouble).square().sum() + gradients[2].to(at::kDouble).square().sum()).item<double>());
}

TEST(Clip, ScalesToTheLargestNormAndReturnsTheOldOne) {
  std::vector<Tensor> gradients = random_gradients();
  const double norm = plain_norm(gradients);
  EXPECT_NEAR(clip_by_global_norm(gradients, 0.5), norm, 1e-12);
  EXPECT_NEAR(plain_norm(gradients), 0.5, 1e-6);
  EXPECT_NEAR(clip_by_global_norm(gradients, 0.5), 0.5, 1e-6);
}

TEST(Clip, LeavesSmallGradientsAndDisabledClippingAlone) {
  for (const double max_norm : {0.0, 1e6}) {
    std::vector<Tensor> gradients = random_gradients();
    const Tensor before = gradients[0].clone();
    clip_by_global_norm(gradients, max_norm);
    EXPECT_TRUE(at::equal(gradients[0], before)) << max_norm;
  }
}

TEST(Clip, OfNothingIsNothing) {
  EXPECT_EQ(squared_norm({}), 0);
  scale({}, 0.5);
  scale({Tensor()}, 0.5);
  EXPECT_EQ(clip_by_global_norm({Tensor()}, 1), 0);
}

TEST(Clip, SquaresOfPartsAddUp) {
  const std::vector<Tensor> gradients = random_gradients(at::kFloat);
  const double parts = squared_norm({gradients[0].narrow(0, 0, 13)}) + squared_norm({gradients[0].narrow(0, 13, 17)}) +
                       squared_norm({gradients[2]});
  EXPECT_NEAR(parts, squared_norm(gradients), 1e-12 * parts);
  EXPECT_EQ(squared_norm({Tensor()}), 0);
}

// In fp32 ten million equal squares would stop adding up at 2^24.
TEST(Clip, SumsInDouble) {
  EXPECT_NEAR(squared_norm({at::full({20'000'000}, 0.1f)}), 20'000'000 * std::pow(static_cast<double>(0.1f), 2), 1e-3);
}

TEST(Clip, ReportsANormThatIsNotFiniteAndTouchesNothing) {
  for (const float bad : {INFINITY, NAN}) {
    std::vector<Tensor> gradients = {at::ones({3}), at::full({1}, bad)};
    EXPECT_FALSE(std::isfinite(clip_by_global_norm(gradients, 1)));
    EXPECT_TRUE(at::equal(gradients[0], at::ones({3})));
  }
}

// In whatever pieces and order: the same bits, and the right ones.
TEST(OrderFreeNorm, HasTheSameBitsHoweverElementsAreCut) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor whole = at::randn({10007}, type) * at::logspace(-12, 3, 10007, 10, type);
    const double expected = order_free_squared_norm({whole});
    const double near = whole.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(expected / near, 1, 1e-14);
    EXPECT_NE(squared_norm({whole}), squared_norm(whole.split(97))) << "the plain norm depends on the cut";
    for (const int64_t cut : {1000, 97, 8}) {
      EXPECT_EQ(order_free_squared_norm(whole.split(cut)), expected) << cut;
      EXPECT_EQ(order_free_squared_norm(whole.flip(0).split(cut)), expected) << cut;
    }
  }
}

TEST(OrderFreeNorm, OfNothingZeroAndWhatIsNotFinite) {
  EXPECT_EQ(order_free_squared_norm({}), 0);
  EXPECT_EQ(order_free_squared_norm({at::Tensor(), at::zeros({0}), at::zeros({3})}), 0);
  EXPECT_EQ(order_free_squared_norm({at::full({4}, 3.0)}), 36);
  EXPECT_DOUBLE_EQ(order_free_squared_norm({at::full({2}, 1e-40f)}), 2 * std::pow(double{1e-40f}, 2));
  EXPECT_DOUBLE_EQ(order_free_squared_norm({at::full({2}, 1e38f)}), 2 * std::pow(double{1e38f}, 2));
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(order_free_squared_norm({at::ones({2}), at::full({1}, bad)}), infinity) << bad;
  }
}

}  // namespace
}  // namespace lockstep::optim
