// The environment variables by which our launcher tells a rank its place.
#pragma once

namespace lockstep::launch {

inline constexpr char kRankVariable[] = "LOCKSTEP_RANK";
inline constexpr char kWorldSizeVariable[] = "LOCKSTEP_WORLD_SIZE";
inline constexpr char kDescriptorVariable[] = "LOCKSTEP_WORLD_FD";

}  // namespace lockstep::launch
