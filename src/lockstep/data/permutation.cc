#include "lockstep/data/permutation.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"

namespace lockstep::data {

Permutation::Permutation(int64_t size, uint64_t seed, std::string_view name)
    : size_(static_cast<uint64_t>(size)), rng_(seed, name) {
  LOCKSTEP_CHECK(size >= 1 && size <= int64_t{1} << 62, "a permutation of ", size);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
}

uint64_t Permutation::scramble(uint64_t value) const {
  constexpr uint64_t kRounds = 8;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (rng_.bits(round << half_bits_ | right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::at(int64_t place) const {
  LOCKSTEP_CHECK(place >= 0 && static_cast<uint64_t>(place) < size_, "place ", place, " of ", size_);
  auto value = static_cast<uint64_t>(place);
  do {
    value = scramble(value);
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace lockstep::data
