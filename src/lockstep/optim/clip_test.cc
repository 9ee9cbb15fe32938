#include "lockstep/optim/clip.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

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

}  // namespace
}  // namespace lockstep::optim
