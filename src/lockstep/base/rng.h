// Counter-based random numbers: the value at (seed, name, index) depends on nothing else, so a rank that holds a slice
// of a tensor draws the same numbers for it as a rank that holds all of it.
//   source   Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": Philox4x32-10
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

// Ten rounds of Philox on a 128-bit counter under a 64-bit key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// FNV-1a: the same on every platform and in every run (std::hash promises neither).
uint64_t stable_hash(std::string_view text);

class CounterRng {
 public:
  CounterRng(uint64_t seed, std::string_view name);

  uint64_t bits(uint64_t index) const;                   // 64 uniform bits
  double uniform(uint64_t index) const;                  // [0, 1), 53 bits
  double normal(uint64_t index) const;                   // mean 0, standard deviation 1 (Box-Muller)
  uint64_t below(uint64_t index, uint64_t bound) const;  // 0..bound-1, bound > 0; bias below 2^-64 * bound

 private:
  std::array<uint32_t, 4> block(uint64_t index) const;
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
};

}  // namespace lockstep
