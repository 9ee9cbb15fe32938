#include "lockstep/mesh/placement.h"

#include <algorithm>
#include <ranges>

#include "lockstep/base/error.h"

namespace lockstep::mesh {

int64_t Region::count() const {
  int64_t product = 1;
  for (const int64_t extent : size) product *= extent;
  return product;
}

Range split(int64_t length, Piece piece) {
  LOCKSTEP_CHECK(piece.of >= 1 && piece.index >= 0 && piece.index < piece.of, "piece ", piece.index, " of ", piece.of);
  const int64_t whole = length / piece.of, longer = length % piece.of;
  return {piece.index * whole + std::min<int64_t>(piece.index, longer), whole + (piece.index < longer ? 1 : 0)};
}

Region local_region(const std::vector<int64_t>& global_shape, const Placement& placement, const Mesh& mesh, int rank) {
  Region region{std::vector<int64_t>(global_shape.size(), 0), global_shape};
  const Coordinates coordinates = mesh.coordinates(rank);
  for (const Axis axis : std::views::reverse(mesh.order())) {
    const auto found = placement.by_axis.find(axis);
    if (found == placement.by_axis.end()) continue;
    const auto [dim, pieces] = found->second;
    const int ranks = mesh.size(axis);
    if (dim < 0 || static_cast<size_t>(dim) >= global_shape.size()) {
      throw InvalidArgument(
          text("a shard along ", name(axis), " names dim ", dim, " of a tensor of ", global_shape.size(), " dims"));
    }
    if (pieces < 1 || ranks % pieces != 0) {
      throw InvalidArgument(text(pieces, " pieces along ", name(axis), ": the pieces must divide the axis of ", ranks));
    }
    const int ranks_per_piece = ranks / pieces;
    const Range piece = split(region.size[static_cast<size_t>(dim)], {coordinates[axis] / ranks_per_piece, pieces});
    region.offset[static_cast<size_t>(dim)] += piece.offset;
    region.size[static_cast<size_t>(dim)] = piece.size;
  }
  return region;
}

}  // namespace lockstep::mesh
