#include "lockstep/base/rng.h"

#include <cmath>
#include <numbers>

namespace lockstep {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c[0], product1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(product0)};
    k[0] += kWeyl0;
    k[1] += kWeyl1;
  }
  return c;
}

uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

CounterRng::CounterRng(uint64_t seed, std::string_view name)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(stable_hash(name)) {}

std::array<uint32_t, 4> CounterRng::block(uint64_t index) const {
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream_),
                 static_cast<uint32_t>(stream_ >> 32)},
                key_);
}

uint64_t CounterRng::bits(uint64_t index) const {
  const auto b = block(index);
  return static_cast<uint64_t>(b[1]) << 32 | b[0];
}

double CounterRng::uniform(uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
}

double CounterRng::normal(uint64_t index) const {
  const auto b = block(index);
  const uint64_t first = static_cast<uint64_t>(b[1]) << 32 | b[0], second = static_cast<uint64_t>(b[3]) << 32 | b[2];
  const double radius_uniform = (static_cast<double>(first >> 11) + 1) * 0x1.0p-53;  // (0, 1]: log is finite
  const double angle_uniform = static_cast<double>(second >> 11) * 0x1.0p-53;
  return std::sqrt(-2 * std::log(radius_uniform)) * std::cos(2 * std::numbers::pi * angle_uniform);
}

uint64_t CounterRng::below(uint64_t index, uint64_t bound) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

}  // namespace lockstep
