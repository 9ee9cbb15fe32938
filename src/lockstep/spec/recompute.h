// Which layers a model computes again in backward: segments, of which only the inputs are kept.
#pragma once

#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/spec/plan.h"

namespace lockstep::spec {

struct RecomputeSegment {
  mesh::Range layers;
  bool recomputed = false;  // false: its activations are kept
  bool operator==(const RecomputeSegment&) const = default;
};

// The segments of consecutive layers, in order.
//   none, selective   one that keeps its activations (selective recomputes within each layer)
//   stage             the same: a pipeline's schedule recomputes the whole stage
//   full              every layer by itself: layers inputs kept, layers forwards more
//   sqrt              ceil(sqrt(layers)) segments, the first ones one longer when they do not divide the layers. The
//   last
//                     is not recomputed: its backward comes right after its forward. With n = k k layers, k inputs and
//                     k layers' activations are alive at most, and n - k forwards are more
//   source            Chen et al. 2016, section 3
std::vector<RecomputeSegment> recompute_segments(Recompute mode, mesh::Range layers);

}  // namespace lockstep::spec
