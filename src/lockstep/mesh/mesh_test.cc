#include "lockstep/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "lockstep/base/error.h"

namespace lockstep::mesh {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A random mesh; the seed is printed by SCOPED_TRACE of its user.
Mesh random_mesh(unsigned seed) {
  std::mt19937 random(seed);
  MeshOptions options;
  for (const Axis axis : kAxes) options.sizes[axis] = std::uniform_int_distribution(1, 4)(random);
  std::ranges::shuffle(options.order, random);
  return Mesh(options);
}

TEST(Mesh, DefaultOrderIsTensorFirst) {
  MeshOptions options;
  options.sizes[Axis::tensor] = 2;
  options.sizes[Axis::data] = 3;
  const Mesh mesh(options);
  EXPECT_EQ(mesh.world_size(), 6);
  EXPECT_EQ(mesh.coordinates(5), (Coordinates{{1, 0, 0, 2, 0}}));
  EXPECT_THAT(mesh.peers(3, std::array{Axis::data}), ElementsAre(1, 3, 5));
  EXPECT_THAT(mesh.peers(3, std::array{Axis::tensor}), ElementsAre(2, 3));
  EXPECT_THAT(mesh.peers(3, std::array<Axis, 0>{}), ElementsAre(3));
}

TEST(Mesh, OrderIsAValue) {
  MeshOptions options;
  options.sizes[Axis::tensor] = 2;
  options.sizes[Axis::data] = 3;
  options.order = parse_order("dp,tp,cp,ep,pp");
  const Mesh mesh(options);
  EXPECT_EQ(mesh.coordinates(1), (Coordinates{{0, 0, 0, 1, 0}}));
  EXPECT_THAT(mesh.peers(0, std::array{Axis::data}), ElementsAre(0, 1, 2));
}

TEST(Mesh, RankAndCoordinatesAreInverse) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    const Mesh mesh = random_mesh(seed);
    for (int rank = 0; rank < mesh.world_size(); ++rank) EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
  }
}

TEST(Mesh, GroupsAlongAxesPartitionTheRanks) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const Mesh mesh = random_mesh(seed);
    const std::array axes = {kAxes[seed % 5], kAxes[(seed + 2) % 5]};
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int> group = mesh.peers(rank, axes);
      EXPECT_THAT(group, ::testing::Contains(rank));
      EXPECT_EQ(group.size(), static_cast<size_t>(mesh.size(axes[0]) * mesh.size(axes[1])));
      groups.insert(group);
    }
    EXPECT_EQ(groups.size() * groups.begin()->size(), static_cast<size_t>(mesh.world_size()));
  }
}

TEST(Mesh, KnowsHosts) {
  MeshOptions options;
  options.sizes[Axis::data] = 3;
  EXPECT_EQ(Mesh(options).host_of_rank(2), 0);
  options.host_of_rank = {0, 0, 7};
  EXPECT_EQ(Mesh(options).host_of_rank(2), 7);
  options.host_of_rank = {0, 0};
  EXPECT_THROW(Mesh{options}, InvalidArgument);
}

TEST(Mesh, RefusesSizesThatAreNoSizes) {
  MeshOptions options;
  options.sizes[Axis::pipeline] = 0;
  EXPECT_THROW(Mesh{options}, InvalidArgument);
  options.sizes = {{1 << 20, 1, 1, 1 << 20, 1 << 30}};
  EXPECT_THROW(Mesh{options}, InvalidArgument);
}

TEST(Order, ReadsWhatItPrints) {
  EXPECT_EQ(to_string(kAxes), "tp,cp,ep,dp,pp");
  Order order = kAxes;
  do {
    EXPECT_EQ(parse_order(to_string(order)), order);
  } while (std::ranges::next_permutation(order).found);
}

TEST(Order, RefusesWhatIsNoOrder) {
  for (const char* text :
       {"", "tp", "tp,cp,ep,dp", "tp,cp,ep,dp,dp", "tp,cp,ep,dp,pp,tp", "tp,cp,ep,dp,pp,", "tensor,cp,ep,dp,pp"}) {
    try {
      parse_order(text);
      FAIL() << "accepted " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("fastest first (nearest: tp,cp,ep,dp,pp)"));
    }
  }
}

}  // namespace
}  // namespace lockstep::mesh
