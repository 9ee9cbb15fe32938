// One event format for recorded and simulated runs: what a rank did, on which track, from when to when.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep::trace {

// A rank computes on one track while its communication proceeds on the other.
enum class Track { compute, communication };

struct Event {
  static constexpr size_t kNameCapacity = 40;  // longer names are cut

  int rank = 0;
  Track track = Track::compute;
  std::array<char, kNameCapacity> name_bytes{};  // in place: recording never allocates
  double start_s = 0, duration_s = 0;            // base/clock.h's time
  int64_t bytes = 0;                             // moved or reduced; 0 for compute
  int32_t stage = -1, microbatch = -1;           // -1: none

  std::string_view name() const { return {name_bytes.data()}; }
  void set_name(std::string_view name);
};

}  // namespace lockstep::trace
