#include "lockstep/spec/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rng.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/microbatches.h"
#include "lockstep/spec/toml.h"

namespace lockstep::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::filesystem::path configs_folder() {
  return std::filesystem::path(__FILE__).parent_path() / "../../../configs";
}

TEST(Configs, AreValidOnTheRanksTheyAreMeantFor) {
  for (const char* name : {"verify.toml", "verify_llama.toml"}) {
    const RunPlan plan = read_plan(configs_folder() / name);
    EXPECT_EQ(plan.train.global_batch, 24);
    for (const char* layout : {"single", "dp2", "dp3", "dp4", "dp2-acc4", "fixed_tree", "dp2-fixed_tree",
                               "dp4-fixed_tree", "tp4", "dp3-tp2", "dp2-tp2-sp-acc2"}) {
      const Layout parsed = parse_layout(layout);
      EXPECT_THAT(validate(apply(parsed, plan), parsed.world_size()), IsEmpty()) << name << " " << layout;
    }
  }
  EXPECT_THAT(validate(read_plan(configs_folder() / "shakespeare.toml"), 2), IsEmpty());
}

TEST(MakeMesh, TakesAllRanksOrRefuses) {
  EXPECT_EQ(make_mesh({}, 3).size(mesh::Axis::data), 3);
  EXPECT_EQ(make_mesh({.data = 4}, 4).world_size(), 4);
  EXPECT_THROW(make_mesh({.data = 4}, 3), InvalidArgument);
}

TEST(Validate, TheNearestValuesItOffersWork) {
  RunPlan plan = read_plan(configs_folder() / "verify.toml");
  plan.train.microbatch = 5;
  for (const int64_t offered : {4, 6}) {
    RunPlan repaired = plan;
    repaired.train.microbatch = offered;
    EXPECT_THAT(validate(plan, 1).front().nearest, HasSubstr(text(offered)));
    EXPECT_THAT(validate(repaired, 1), IsEmpty());
  }
}

TEST(Refuse, PutsAllProblemsOnOneLine) {
  EXPECT_NO_THROW(refuse({}));
  try {
    refuse({{"a", "1", "must be 2", "2"}, {"b", "3", "must be even", ""}});
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "a = 1: must be 2 (nearest: 2); b = 3: must be even");
  }
}

// GRAD-22: initial values drawn from a slice's own shape spread twice as wide on four ranks. Here the distribution is
// the global parameter's and each element's value depends on its global index alone.
TEST(InitialValues, OfASliceAreThoseOfTheWhole) {
  const std::vector<int64_t> shape = {8, 64};
  const double std = std::sqrt(2.0 / (8 + 64));  // Xavier
  const ParameterSpec parameter{.name = "row_parallel.weight",
                                .shape = shape,
                                .logical_dims = {"embed", "ffn"},
                                .init = {Init::Kind::normal, std}};
  const CounterRng rng(1, parameter.name);
  const mesh::Placement by_input{{{mesh::Axis::tensor, {1, 4}}}};
  mesh::MeshOptions options;
  options.sizes[mesh::Axis::tensor] = 4;
  const mesh::Mesh mesh(options);
  double squares = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const mesh::Region region = mesh::local_region(shape, by_input, mesh, rank);
    for (int64_t i = 0; i < region.count(); ++i) {
      const int64_t row = region.offset[0] + i / region.size[1], column = region.offset[1] + i % region.size[1];
      const double value = parameter.init.std * rng.normal(static_cast<uint64_t>(row * shape[1] + column));
      squares += value * value;
    }
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(parameter.count())), 0.1667, 0.02);
}

}  // namespace
}  // namespace lockstep::spec
