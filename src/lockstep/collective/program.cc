#include "lockstep/collective/program.h"

#include <algorithm>
#include <numeric>

namespace lockstep::collective {
namespace {

constexpr std::array<std::string_view, kOperations> kOperationNames = {
    "broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "scatter", "gather", "all_to_all"};

}  // namespace

std::string_view name(Operation operation) {
  return kOperationNames[static_cast<size_t>(operation)];
}

Operation parse_operation(std::string_view text) {
  const auto* found = std::find(kOperationNames.begin(), kOperationNames.end(), text);
  if (found != kOperationNames.end()) return static_cast<Operation>(found - kOperationNames.begin());
  std::string names;
  for (const std::string_view each : kOperationNames) names += (names.empty() ? "" : ", ") + std::string(each);
  throw InvalidArgument(Problem{"operation", std::string(text), "must be one of " + names, ""}.message());
}

bool has_root(Operation operation) {
  using enum Operation;
  return operation == broadcast || operation == reduce || operation == scatter || operation == gather;
}

bool reduces(Operation operation) {
  using enum Operation;
  return operation == reduce || operation == all_reduce || operation == reduce_scatter;
}

Division division(Operation operation) {
  using enum Operation;
  if (operation == all_to_all) return Division::per_pair;
  const bool whole = operation == broadcast || operation == reduce || operation == all_reduce;
  return whole ? Division::whole : Division::per_rank;
}

std::string_view name(Rounding rounding) {
  constexpr std::string_view kNames[] = {"none", "once", "per_hop"};
  return kNames[static_cast<size_t>(rounding)];
}

std::string_view name(Buffer buffer) {
  constexpr std::string_view kNames[] = {"input", "output", "scratch"};
  return kNames[static_cast<size_t>(buffer)];
}

std::string_view name(Step::Kind kind) {
  constexpr std::string_view kNames[] = {"send", "receive", "receive_reduce", "copy"};
  return kNames[static_cast<size_t>(kind)];
}

int Held::slot(int piece) const {
  const int distance = piece - first;
  if (distance < 0 || distance % stride != 0 || distance / stride >= count) return -1;
  return distance / stride;
}

std::vector<int64_t> piece_sizes(const Program& program, int64_t count) {
  std::vector<int64_t> sizes(static_cast<size_t>(program.pieces), count);
  if (division(program.operation) != Division::whole) return sizes;
  for (int piece = 0; piece < program.pieces; ++piece) {
    sizes[static_cast<size_t>(piece)] = mesh::split(count, {piece, program.pieces}).size;
  }
  return sizes;
}

Layout::Layout(const Program& program, std::span<const int64_t> sizes, int rank)
    : held_(program.held_by_rank[static_cast<size_t>(rank)]) {
  if (sizes.size() != static_cast<size_t>(program.pieces) ||
      std::ranges::any_of(sizes, [](int64_t n) { return n < 0; })) {
    throw InvalidArgument(text("sizes: ", name(program.operation), " of ", program.ranks, " ranks takes ",
                               program.pieces, " counts, none negative; there are ", sizes.size()));
  }
  for (size_t buffer = 0; buffer < held_.size(); ++buffer) {
    const Held& held = held_[buffer];
    std::vector<int64_t>& starts = starts_[buffer];
    starts.assign(1, 0);
    for (int slot = 0; slot < held.count; ++slot) {
      starts.push_back(starts.back() + sizes[static_cast<size_t>(held.first + slot * held.stride)]);
    }
  }
}

mesh::Range Layout::range(const Chunk& chunk) const {
  const std::vector<int64_t>& starts = starts_[static_cast<size_t>(chunk.buffer)];
  const int slot = held_[static_cast<size_t>(chunk.buffer)].slot(chunk.piece);
  LOCKSTEP_CHECK(slot >= 0 && slot + chunk.run < static_cast<int>(starts.size()), name(chunk.buffer), " piece ",
                 chunk.piece, " run ", chunk.run);
  const int64_t start = starts[static_cast<size_t>(slot)];
  return {start, starts[static_cast<size_t>(slot + chunk.run)] - start};
}

}  // namespace lockstep::collective
