#include "lockstep/spec/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "lockstep/spec/names.h"

namespace lockstep::spec {
namespace {

using mesh::Axis;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunPlan plan_on(int64_t tensor, bool sequence_parallel = false) {
  RunPlan plan;
  plan.parallel.tensor = tensor;
  plan.parallel.sequence_parallel = sequence_parallel;
  return plan;
}

ParameterSpec parameter_of(const RunPlan& plan, const std::string& name) {
  for (const ParameterSpec& parameter : parameters(plan.model)) {
    if (parameter.name == name) return parameter;
  }
  throw InvalidArgument("no parameter " + name);
}

// Flat indices of a region of a tensor.
std::vector<int64_t> elements(const std::vector<int64_t>& shape, const mesh::Region& region) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < region.count(); ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (size_t dim = shape.size(); dim-- > 0;) {
      flat += (region.offset[dim] + rest % region.size[dim]) * stride;
      rest /= region.size[dim];
      stride *= shape[dim];
    }
    result.push_back(flat);
  }
  return result;
}

// Together the tensor ranks of one data rank count every element once, hold every element, and the ranks that hold an
// element agree on whose gradients are added.
void expect_whole(const ParameterSpec& parameter, const RunPlan& plan, const mesh::Mesh& mesh) {
  std::map<int64_t, int> counted;
  std::map<int64_t, std::set<std::vector<int>>> gradient_ranks;
  const Axis tensor_axis[] = {Axis::tensor};
  for (const int rank : mesh.peers(0, tensor_axis)) {
    const ParameterPlace place = place_on_rank(parameter, plan, mesh, rank);
    EXPECT_THAT(place.gradient_ranks, ::testing::Contains(rank));
    for (const int64_t element : elements(parameter.shape, place.region)) {
      counted[element] += place.counted_in_norm ? 1 : 0;
      gradient_ranks[element].insert(place.gradient_ranks);
    }
  }
  EXPECT_EQ(static_cast<int64_t>(counted.size()), parameter.count()) << parameter.name;
  for (const auto& [element, times] : counted) EXPECT_EQ(times, 1) << parameter.name << " element " << element;
  const bool is_replicated = place_on_rank(parameter, plan, mesh, 0).region.count() == parameter.count();
  for (const auto& [element, ranks] : gradient_ranks) {
    if (is_replicated && !plan.parallel.sequence_parallel) continue;  // every rank has the whole gradient
    EXPECT_EQ(ranks.size(), 1u) << parameter.name << " element " << element;
  }
}

TEST(PlaceOnRank, HoldsAndCountsEveryElementOfEveryModel) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    std::mt19937 random(seed);
    const auto upto = [&](int high) { return std::uniform_int_distribution(1, high)(random); };
    RunPlan plan = plan_on(upto(5));
    plan.parallel.sequence_parallel = plan.parallel.tensor > 1 && upto(2) == 1;
    plan.model.layers = 1;
    plan.model.heads = plan.parallel.tensor * upto(3);
    plan.model.hidden = plan.model.heads * upto(3);
    plan.model.kv_heads = upto(2) == 1 ? plan.model.heads : 1;
    plan.model.ffn_hidden = plan.parallel.tensor + upto(9) - 1;
    plan.model.vocab = upto(12);
    plan.model.sequence = 8;
    plan.model.tie_embeddings = upto(2) == 1;
    ASSERT_THAT(validate_placement(plan), IsEmpty());
    const mesh::Mesh mesh = make_mesh(plan.parallel, static_cast<int>(plan.parallel.tensor) * upto(3));
    for (const ParameterSpec& parameter : parameters(plan.model)) expect_whole(parameter, plan, mesh);
  }
}

TEST(PlaceOnRank, EverySizeOnEveryNumberOfRanks) {
  for (int64_t size = 0; size <= 9; ++size) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const char* dim : {"ffn", "vocab", "embed"}) {
        const RunPlan plan = plan_on(ranks);
        const mesh::Mesh mesh = make_mesh(plan.parallel, ranks);
        expect_whole({.name = text(dim, size), .shape = {size, 3}, .logical_dims = {dim, "embed"}}, plan, mesh);
        expect_whole({.name = text(dim, size), .shape = {2, size}, .logical_dims = {"embed", dim}}, plan, mesh);
      }
    }
  }
}

TEST(PlaceOnRank, SplitsByWhatADimMeans) {
  const RunPlan plan = plan_on(2);
  const mesh::Mesh mesh = make_mesh(plan.parallel, 2);
  const auto shape = [&](const std::string& name) {
    return place_on_rank(parameter_of(plan, name), plan, mesh, 1).shape;
  };
  EXPECT_THAT(shape("layers.0.attention.query.weight"), ElementsAre(64, 128));
  EXPECT_THAT(shape("layers.0.attention.query.bias"), ElementsAre(64));
  EXPECT_THAT(shape("layers.0.attention.output.weight"), ElementsAre(128, 64));
  EXPECT_THAT(shape("layers.0.attention.output.bias"), ElementsAre(128));
  EXPECT_THAT(shape("layers.0.ffn.up.weight"), ElementsAre(256, 128));
  EXPECT_THAT(shape("embed.tokens.weight"), ElementsAre(128, 128));
  EXPECT_THAT(shape("embed.positions.weight"), ElementsAre(128, 128));
  EXPECT_THAT(shape("final_norm.weight"), ElementsAre(128));
}

TEST(PlaceOnRank, PadsAVocabularyThatDoesNotDivide) {
  RunPlan plan = plan_on(4);
  plan.model.vocab = 5;
  const mesh::Mesh mesh = make_mesh(plan.parallel, 4);
  std::vector<int64_t> held;
  for (int rank = 0; rank < 4; ++rank) {
    const ParameterPlace place = place_on_rank(parameter_of(plan, "embed.tokens.weight"), plan, mesh, rank);
    EXPECT_EQ(place.shape[0], 2);
    held.push_back(place.region.size[0]);
  }
  EXPECT_THAT(held, ElementsAre(2, 2, 1, 0));
}

TEST(PlaceOnRank, FewerKeyValueHeadsThanRanksAreSharedAndTheirGradientSummed) {
  RunPlan plan = plan_on(4);
  plan.model.kv_heads = 2;
  const mesh::Mesh mesh = make_mesh(plan.parallel, 8);  // rank = tensor + 4 data
  const ParameterSpec key = parameter_of(plan, "layers.0.attention.key.weight");
  const auto place = [&](int rank) { return place_on_rank(key, plan, mesh, rank); };
  EXPECT_EQ(place(0).region, place(1).region);
  EXPECT_THAT(place(2).region.offset, ElementsAre(32, 0));
  EXPECT_THAT(place(1).gradient_ranks, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(place(6).gradient_ranks, ElementsAre(2, 3, 6, 7));
  EXPECT_TRUE(place(2).counted_in_norm);
  EXPECT_FALSE(place(3).counted_in_norm);
  const ParameterSpec query = parameter_of(plan, "layers.0.attention.query.weight");
  EXPECT_THAT(place_on_rank(query, plan, mesh, 6).gradient_ranks, ElementsAre(2, 6));
}

// GRAD-01: what sees only a rank's positions is summed over the tensor ranks.
TEST(PlaceOnRank, WithSequenceParallelismReplicatedGradientsAreSummedOverTensorRanks) {
  for (const bool sequence_parallel : {false, true}) {
    const RunPlan plan = plan_on(2, sequence_parallel);
    const mesh::Mesh mesh = make_mesh(plan.parallel, 4);
    for (const ParameterSpec& parameter : parameters(plan.model)) {
      if (!parameter.tied_to.empty()) continue;
      const ParameterPlace place = place_on_rank(parameter, plan, mesh, 1);
      const bool is_replicated = place.region.count() == parameter.count();
      const std::vector<int> expected =
          is_replicated && sequence_parallel ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{1, 3};
      EXPECT_EQ(place.gradient_ranks, expected) << parameter.name;
    }
  }
}

TEST(PlacementRules, AreChangedByThePlan) {
  RunPlan plan = plan_on(2);
  plan.parallel.rules = {{"vocab", "none"}, {"ffn", "tensor"}};
  EXPECT_FALSE(placement_rules(plan).contains("vocab"));
  EXPECT_TRUE(placement_rules(plan).contains("ffn"));
  const mesh::Mesh mesh = make_mesh(plan.parallel, 2);
  const ParameterSpec table = parameter_of(plan, "embed.tokens.weight");
  EXPECT_EQ(place_on_rank(table, plan, mesh, 1).shape, table.shape);
  EXPECT_THAT(place(table, placement_rules(plan), mesh).by_axis, IsEmpty());
}

}  // namespace
}  // namespace lockstep::spec
