#include "lockstep/spec/recompute.h"

namespace lockstep::spec {

namespace {

int num_segments(Recompute mode, int64_t layers) {
  if (mode == Recompute::full) return static_cast<int>(layers);
  if (mode != Recompute::sqrt) return 1;
  int root = 1;
  while (int64_t{root} * root < layers) ++root;
  return root;
}

}  // namespace

std::vector<RecomputeSegment> recompute_segments(Recompute mode, mesh::Range layers) {
  std::vector<RecomputeSegment> segments;
  const int count = num_segments(mode, layers.size);
  for (int i = 0; i < count; ++i) {
    const mesh::Range piece = mesh::split(layers.size, {i, count});
    const bool recomputed = mode == Recompute::full || (mode == Recompute::sqrt && i + 1 < count);
    segments.push_back({{layers.offset + piece.offset, piece.size}, recomputed});
  }
  return segments;
}

}  // namespace lockstep::spec
