#include "lockstep/mesh/mesh.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::mesh {

namespace {

constexpr std::array<std::string_view, kAxes.size()> kNames = {"tensor", "context", "expert", "data", "pipeline"};
constexpr std::array<std::string_view, kAxes.size()> kShortNames = {"tp", "cp", "ep", "dp", "pp"};

[[noreturn]] void refuse_order(std::string_view text) {
  throw InvalidArgument(Problem{"parallel.order", lockstep::text('"', text, '"'),
                                "must name tp, cp, ep, dp and pp once each, fastest first", to_string(kAxes)}
                            .message());
}

}  // namespace

std::string_view name(Axis axis) {
  return kNames[static_cast<size_t>(axis)];
}

std::string_view short_name(Axis axis) {
  return kShortNames[static_cast<size_t>(axis)];
}

std::string to_string(const Order& order) {
  std::array<std::string_view, kAxes.size()> names;
  std::ranges::transform(order, names.begin(), short_name);
  return join(names, ",");
}

Order parse_order(std::string_view text) {
  Order order{};
  PerAxis seen;
  std::string_view rest = text;
  for (Axis& axis : order) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const auto* found = std::ranges::find(kShortNames, word);
    if (found == kShortNames.end()) refuse_order(text);
    axis = kAxes[static_cast<size_t>(found - kShortNames.begin())];
    if (seen[axis]++ != 0) refuse_order(text);
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  }
  if (to_string(order) != text) refuse_order(text);  // something follows
  return order;
}

Mesh::Mesh(const MeshOptions& options) : options_(options) {
  int64_t product = 1;
  for (const Axis axis : kAxes) {
    const int size = options.sizes[axis];
    if (size < 1) {
      throw InvalidArgument(Problem{text("parallel.", name(axis)), text(size), "must be at least 1", "1"}.message());
    }
    product *= size;
    if (product > std::numeric_limits<int>::max()) {
      throw InvalidArgument(
          text("a mesh of more than ", std::numeric_limits<int>::max(), " ranks: make an axis smaller"));
    }
  }
  world_size_ = static_cast<int>(product);
  const size_t hosts = options.host_of_rank.size();
  if (hosts != 0 && hosts != static_cast<size_t>(world_size_)) {
    throw InvalidArgument(text("hosts of ", hosts, " ranks are given for a mesh of ", world_size_, " ranks"));
  }
}

int Mesh::host_of_rank(int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < world_size_, "rank ", rank, " of ", world_size_);
  return options_.host_of_rank.empty() ? 0 : options_.host_of_rank[static_cast<size_t>(rank)];
}

Coordinates Mesh::coordinates(int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < world_size_, "rank ", rank, " of ", world_size_);
  Coordinates result;
  for (const Axis axis : options_.order) {
    result[axis] = rank % size(axis);
    rank /= size(axis);
  }
  return result;
}

int Mesh::rank(const Coordinates& coordinates) const {
  int result = 0, stride = 1;
  for (const Axis axis : options_.order) {
    const int coordinate = coordinates[axis];
    LOCKSTEP_CHECK(coordinate >= 0 && coordinate < size(axis), "coordinate ", coordinate, " of ", size(axis));
    result += coordinate * stride;
    stride *= size(axis);
  }
  return result;
}

std::vector<int> Mesh::peers(int rank, std::span<const Axis> axes) const {
  const Coordinates own = coordinates(rank);
  const auto is_free = [&](Axis axis) { return std::ranges::find(axes, axis) != axes.end(); };
  std::vector<int> result;
  for (int other = 0; other < world_size_; ++other) {
    const Coordinates theirs = coordinates(other);
    if (std::ranges::all_of(kAxes, [&](Axis axis) { return is_free(axis) || theirs[axis] == own[axis]; })) {
      result.push_back(other);
    }
  }
  return result;
}

}  // namespace lockstep::mesh
