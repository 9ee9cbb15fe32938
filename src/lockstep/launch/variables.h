// The environment variables by which our launcher tells a rank its place.
#pragma once

namespace lockstep::launch {

inline constexpr char kRankVariable[] = "LOCKSTEP_RANK";
inline constexpr char kWorldSizeVariable[] = "LOCKSTEP_WORLD_SIZE";
inline constexpr char kDescriptorVariable[] = "LOCKSTEP_WORLD_FD";

// Set by people, for programs of their own: the folder of comm::FlightRecorder.
inline constexpr char kFlightVariable[] = "LOCKSTEP_FLIGHT_RECORD";

}  // namespace lockstep::launch
