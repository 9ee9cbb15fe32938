// Ranks on named axes. A rank is a number from 0 to world_size - 1 and, at the same time, a point with a coordinate on
// each of five axes; the order says which coordinate changes first from one rank to the next.
//
//   tensor = 2, data = 3, default order:   rank        0 1 2 3 4 5
//                                          tensor      0 1 0 1 0 1
//                                          data        0 0 1 1 2 2
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::mesh {

enum class Axis : uint8_t { tensor, context, expert, data, pipeline };

using Order = std::array<Axis, 5>;  // each axis once, fastest first
inline constexpr Order kAxes = {Axis::tensor, Axis::context, Axis::expert, Axis::data, Axis::pipeline};

std::string_view name(Axis axis);        // "tensor"
std::string_view short_name(Axis axis);  // "tp"

std::string to_string(const Order& order);  // "tp,cp,ep,dp,pp"
Order parse_order(std::string_view text);   // throws InvalidArgument unless each short name is there once

// A value for each axis: sizes, coordinates.
struct PerAxis {
  std::array<int, kAxes.size()> by_axis{};
  int& operator[](Axis axis) { return by_axis[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return by_axis[static_cast<size_t>(axis)]; }
  bool operator==(const PerAxis&) const = default;
};
using Coordinates = PerAxis;

struct MeshOptions {
  PerAxis sizes{{1, 1, 1, 1, 1}};
  Order order = kAxes;
  std::vector<int> host_of_rank;  // empty: all ranks on host 0
};

class Mesh {
 public:
  // throws InvalidArgument: a size below 1, a product above 2^31 - 1, or a host list of another length
  explicit Mesh(const MeshOptions& options = {});

  int size(Axis axis) const { return options_.sizes[axis]; }
  int world_size() const { return world_size_; }
  const Order& order() const { return options_.order; }
  int host_of_rank(int rank) const;

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;

  // The ranks that differ from `rank` on these axes only, itself among them: its group along the axes, in ascending
  // order.
  std::vector<int> peers(int rank, std::span<const Axis> axes) const;

 private:
  MeshOptions options_;
  int world_size_ = 1;
};

}  // namespace lockstep::mesh
