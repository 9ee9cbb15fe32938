// Where a parameter lives. For each mesh axis a tensor is replicated or sharded along one of its dims; from that alone
// follows the box of the global tensor that a rank holds.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/mesh/mesh.h"

namespace lockstep::mesh {

// `pieces` divides the size of the axis; when it is smaller, consecutive ranks hold the same piece, as key/value heads
// fewer than ranks do.
struct Shard {
  int dim = 0;
  int pieces = 1;
  bool operator==(const Shard&) const = default;
};

struct Placement {
  std::map<Axis, Shard> by_axis;  // absent: replicated along that axis
  bool operator==(const Placement&) const = default;
};

// A box of the global tensor: per dim, the first index and how many.
struct Region {
  std::vector<int64_t> offset, size;
  int64_t count() const;
  bool operator==(const Region&) const = default;
};

struct Range {
  int64_t offset = 0, size = 0;
  bool operator==(const Range&) const = default;
};

struct Piece {
  int index = 0, of = 1;
};

// Cuts [0, length) into contiguous pieces; when they do not divide it, the first ones are one longer.
Range split(int64_t length, Piece piece);

// The box that `rank` holds. Where several axes shard one dim, the slowest axis of the mesh splits first and the others
// split its piece.
//   throws   InvalidArgument when a shard names no dim of the tensor or its pieces do not divide the axis
Region local_region(const std::vector<int64_t>& global_shape, const Placement& placement, const Mesh& mesh, int rank);

}  // namespace lockstep::mesh
