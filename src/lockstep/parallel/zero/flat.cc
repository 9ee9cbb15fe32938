#include "lockstep/parallel/zero/flat.h"

#include <algorithm>

#include "lockstep/base/units.h"

namespace lockstep::parallel {
namespace {

// Cuts the plan's range into slices and finds the pieces of this rank's.
void cut(Flat& flat, std::span<const at::Tensor> parameters, mesh::Piece rank) {
  const int64_t aligned = kAlignmentBytes / static_cast<int64_t>(at::elementSize(flat.plan.type));
  flat.plan.elements = round_up(flat.plan.elements, rank.of * aligned);
  flat.slice = flat.plan.elements / rank.of;
  const int64_t begin = rank.index * flat.slice, end = begin + flat.slice;
  for (const BucketSlot& slot : flat.plan.slots) {
    const int64_t first = std::max(begin, slot.offset);
    const int64_t last = std::min(end, slot.offset + parameters[slot.parameter].numel());
    if (first < last) flat.pieces.push_back({slot.parameter, first - slot.offset, first - begin, last - first});
  }
}

}  // namespace

std::vector<Flat> flats_of_buckets(std::span<const at::Tensor> parameters, std::span<const size_t> order,
                                   int64_t bucket_bytes, mesh::Piece rank) {
  std::vector<Flat> flats;
  for (BucketPlan& plan : plan_buckets(parameters, order, bucket_bytes)) {
    plan.elements = plan.flags_offset;
    Flat& flat = flats.emplace_back(Flat{.plan = std::move(plan), .name = text("bucket ", flats.size())});
    cut(flat, parameters, rank);
  }
  return flats;
}

std::vector<Flat> flats_of_unit(std::span<const at::Tensor> parameters, std::span<const size_t> order,
                                const std::string& name, mesh::Piece rank) {
  std::vector<Flat> flats;
  for (const size_t index : order) {
    const at::Tensor& parameter = parameters[index];
    auto flat = std::ranges::find_if(flats, [&](const Flat& other) {
      return other.plan.type == parameter.scalar_type() && other.plan.device == parameter.device() &&
             other.trained == parameter.requires_grad();
    });
    if (flat == flats.end()) {
      flats.push_back({.plan = {.type = parameter.scalar_type(), .device = parameter.device()},
                       .name = name,
                       .trained = parameter.requires_grad()});
      flat = std::prev(flats.end());
    }
    append(flat->plan, index, parameter);
  }
  for (Flat& flat : flats) cut(flat, parameters, rank);
  return flats;
}

}  // namespace lockstep::parallel
