#include "lockstep/mesh/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::mesh {
namespace {

using ::testing::Each;

TEST(Split, CoversTheWholeOnceInOrder) {
  for (int64_t length = 0; length <= 9; ++length) {
    for (int pieces = 1; pieces <= 5; ++pieces) {
      int64_t next = 0, previous_size = length;
      for (int index = 0; index < pieces; ++index) {
        const Range range = split(length, {index, pieces});
        EXPECT_EQ(range.offset, next) << length << " in " << pieces;
        EXPECT_LE(range.size, previous_size) << "first ones are the longer ones";
        EXPECT_GE(range.size, length / pieces);
        EXPECT_LE(range.size, length / pieces + 1);
        previous_size = range.size;
        next += range.size;
      }
      EXPECT_EQ(next, length);
    }
  }
}

// Calls `visit` with the flat index of every element of the region.
template <class Visit>
void for_each_element(const std::vector<int64_t>& shape, const Region& region, const Visit& visit) {
  for (int64_t i = 0; i < region.count(); ++i) {
    int64_t rest = i, flat = 0, stride = 1;
    for (size_t dim = shape.size(); dim-- > 0;) {
      flat += (region.offset[dim] + rest % region.size[dim]) * stride;
      rest /= region.size[dim];
      stride *= shape[dim];
    }
    visit(flat);
  }
}

// Shard, then put together: every element is held, by as many ranks as hold the same piece, and no other.
void expect_identity(const std::vector<int64_t>& shape, const Placement& placement, const Mesh& mesh) {
  int64_t count = 1, copies = mesh.world_size();
  for (const int64_t size : shape) count *= size;
  for (const auto& [axis, shard] : placement.by_axis) copies /= shard.pieces;
  std::vector<int64_t> holders(static_cast<size_t>(count), 0);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    for_each_element(shape, local_region(shape, placement, mesh, rank),
                     [&](int64_t flat) { ++holders.at(static_cast<size_t>(flat)); });
  }
  EXPECT_THAT(holders, Each(copies));
}

Mesh along(Axis axis, int size) {
  MeshOptions options;
  options.sizes[axis] = size;
  return Mesh(options);
}

TEST(LocalRegion, UnionIsTheWholeForEverySizeAndRankCount) {
  for (int64_t size = 0; size <= 9; ++size) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int pieces = 1; pieces <= ranks; ++pieces) {
        if (ranks % pieces != 0) continue;
        SCOPED_TRACE(text("size ", size, ", ", ranks, " ranks, ", pieces, " pieces"));
        for (const int dim : {0, 1}) {
          const std::vector<int64_t> shape = dim == 0 ? std::vector<int64_t>{size, 3} : std::vector<int64_t>{3, size};
          expect_identity(shape, {{{Axis::tensor, {dim, pieces}}}}, along(Axis::tensor, ranks));
        }
      }
    }
  }
}

TEST(LocalRegion, UnionIsTheWholeOnRandomMeshes) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    std::mt19937 random(seed);
    const auto upto = [&](int high) { return std::uniform_int_distribution(1, high)(random); };
    MeshOptions options;
    for (const Axis axis : kAxes) options.sizes[axis] = upto(3);
    std::ranges::shuffle(options.order, random);
    const std::vector<int64_t> shape = {upto(9) - 1, upto(9), upto(4)};
    Placement placement;
    for (const Axis axis : kAxes) {
      if (upto(2) == 1) placement.by_axis[axis] = {upto(3) - 1, upto(2) == 1 ? 1 : options.sizes[axis]};
    }
    expect_identity(shape, placement, Mesh(options));
  }
}

TEST(LocalRegion, ConsecutiveRanksHoldTheSamePiece) {
  const Mesh mesh = along(Axis::tensor, 4);
  const Placement placement{{{Axis::tensor, {0, 2}}}};
  const auto region = [&](int rank) { return local_region({6, 5}, placement, mesh, rank); };
  EXPECT_EQ(region(0), (Region{{0, 0}, {3, 5}}));
  EXPECT_EQ(region(1), region(0));
  EXPECT_EQ(region(2), (Region{{3, 0}, {3, 5}}));
  EXPECT_EQ(region(3), region(2));
}

TEST(LocalRegion, FirstRanksHoldOneMore) {
  const Mesh mesh = along(Axis::data, 3);
  const Placement placement{{{Axis::data, {0, 3}}}};
  EXPECT_EQ(local_region({7}, placement, mesh, 0), (Region{{0}, {3}}));
  EXPECT_EQ(local_region({7}, placement, mesh, 1), (Region{{3}, {2}}));
  EXPECT_EQ(local_region({7}, placement, mesh, 2), (Region{{5}, {2}}));
}

TEST(LocalRegion, TheSlowestAxisSplitsFirst) {
  MeshOptions options;
  options.sizes[Axis::tensor] = 2;
  options.sizes[Axis::data] = 2;
  const Placement placement{{{Axis::tensor, {0, 2}}, {Axis::data, {0, 2}}}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(local_region({8}, placement, Mesh(options), rank), (Region{{2 * rank}, {2}}));
  }
  options.order = parse_order("dp,tp,cp,ep,pp");
  EXPECT_EQ(local_region({8}, placement, Mesh(options), 1), (Region{{2}, {2}})) << "rank 1 is data 1, tensor 0";
}

TEST(LocalRegion, RefusesPiecesThatDoNotDivideTheAxisAndDimsThatAreNot) {
  const Mesh mesh = along(Axis::tensor, 4);
  EXPECT_THROW(local_region({6}, {{{Axis::tensor, {0, 3}}}}, mesh, 0), InvalidArgument);
  EXPECT_THROW(local_region({6}, {{{Axis::tensor, {0, 0}}}}, mesh, 0), InvalidArgument);
  EXPECT_THROW(local_region({6}, {{{Axis::tensor, {1, 2}}}}, mesh, 0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::mesh
