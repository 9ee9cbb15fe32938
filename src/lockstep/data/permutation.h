// A random order of 0 .. size - 1 without a list of it: any place of any order in constant time and memory, so that
// corpora of any size can be shuffled and resumed anywhere.
//   source   Black and Rogaway 2002, "Ciphers with arbitrary finite domains": a Feistel network on the next power of
//   four,
//            walked until it lands inside
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/rng.h"

namespace lockstep::data {

class Permutation {
 public:
  // The order depends on size, seed and name alone; size is at least 1 and at most 2^62.
  Permutation(int64_t size, uint64_t seed, std::string_view name);

  // What stands at `place`: each of 0 .. size - 1 at exactly one.
  int64_t at(int64_t place) const;

 private:
  uint64_t scramble(uint64_t value) const;

  uint64_t size_;
  int half_bits_ = 1;
  CounterRng rng_;
};

}  // namespace lockstep::data
