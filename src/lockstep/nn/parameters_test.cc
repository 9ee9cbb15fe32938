#include "lockstep/nn/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/base/units.h"

namespace lockstep::nn {
namespace {

using at::Tensor;

spec::ParameterSpec normal_parameter(std::vector<int64_t> shape, double std) {
  return {.name = "w", .shape = std::move(shape), .init = {spec::Init::Kind::normal, std}};
}

Tensor filled(const spec::ParameterSpec& parameter, const std::vector<int64_t>& offset, at::IntArrayRef sizes,
              at::ScalarType dtype = at::kFloat) {
  Tensor slice = at::empty(sizes, dtype);
  fill_initial(slice, parameter, /*seed=*/7, offset);
  return slice;
}

TEST(FillInitial, EverySliceHasTheBitsOfTheWhole) {
  const auto parameter = normal_parameter({6, 8, 10}, 0.02);
  const Tensor whole = filled(parameter, {0, 0, 0}, {6, 8, 10});
  for (int dim = 0; dim < 3; ++dim) {
    for (int64_t pieces = 1; pieces <= 2; ++pieces) {
      for (int64_t piece = 0; piece < pieces; ++piece) {
        std::vector<int64_t> offset(3, 0), sizes = parameter.shape;
        sizes[dim] /= pieces;
        offset[dim] = piece * sizes[dim];
        EXPECT_TRUE(at::equal(filled(parameter, offset, sizes), whole.narrow(dim, offset[dim], sizes[dim])))
            << "dim " << dim << " piece " << piece << " of " << pieces;
      }
    }
  }
  EXPECT_TRUE(
      at::equal(filled(parameter, {2, 3, 4}, {3, 4, 5}), whole.narrow(0, 2, 3).narrow(1, 3, 4).narrow(2, 4, 5)));
}

// GRAD-22: in 64, out 8, Xavier: sqrt(2 / (64 + 8)) = 0.1667 for every number of slices along the input, where
// computing the spread from a slice's own widths would give 0.2887 at four.
TEST(FillInitial, TheSpreadDoesNotDependOnTheSlices) {
  const double xavier = std::sqrt(2.0 / (64 + 8));
  const auto parameter = normal_parameter({8, 64}, xavier);
  std::vector<double> spreads;
  for (const int64_t ranks : {1, 2, 4}) {
    std::vector<Tensor> slices;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      slices.push_back(filled(parameter, {0, rank * 64 / ranks}, {8, 64 / ranks}, at::kDouble));
    }
    spreads.push_back(at::cat(slices, 1).std().item<double>());
  }
  EXPECT_THAT(spreads, testing::Each(spreads.front()));
  EXPECT_NEAR(spreads.front(), 0.1667, 0.1667 * 3 / std::sqrt(2 * 512));  // three standard errors
}

TEST(FillInitial, FloatsAreTheRoundedDoubles) {
  const auto parameter = normal_parameter({5, 7}, 0.02);
  EXPECT_TRUE(
      at::equal(filled(parameter, {0, 0}, {5, 7}, at::kDouble).to(at::kFloat), filled(parameter, {0, 0}, {5, 7})));
}

TEST(FillInitial, DependsOnSeedAndName) {
  auto parameter = normal_parameter({4, 4}, 1);
  const Tensor first = filled(parameter, {0, 0}, {4, 4});
  Tensor other_seed = at::empty({4, 4});
  fill_initial(other_seed, parameter, /*seed=*/8, std::vector<int64_t>{0, 0});
  parameter.name = "v";
  const Tensor other_name = filled(parameter, {0, 0}, {4, 4});
  EXPECT_FALSE(at::equal(first, other_seed));
  EXPECT_FALSE(at::equal(first, other_name));
}

TEST(CreateParameters, FollowsTheListWithoutTiedOnes) {
  spec::ModelSpec model = spec::preset("gpt-tiny");
  const auto list = spec::parameters(model);
  const auto parameters = create_parameters(list, /*seed=*/1);
  ASSERT_EQ(parameters.size() + 1, list.size());
  int64_t count = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& tensor = parameters[i].tensor;
    EXPECT_EQ(parameters[i].spec.name, list[i].name);
    EXPECT_THAT(tensor.sizes().vec(), testing::ElementsAreArray(list[i].shape)) << list[i].name;
    EXPECT_TRUE(tensor.requires_grad());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % kAlignmentBytes, 0) << list[i].name;
    count += tensor.numel();
  }
  EXPECT_EQ(count, spec::parameter_count(model));
}

}  // namespace
}  // namespace lockstep::nn
