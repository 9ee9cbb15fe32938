// Sizes with units, in and out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// "64", "4K", "64M", "1.5G" (powers of 1024) -> bytes. Throws InvalidArgument naming `field`.
int64_t parse_size(std::string_view text, std::string_view field);

// 1536 -> "1.5K"; for people.
std::string format_size(int64_t bytes);

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Every parameter, gradient and shard view starts on this boundary: libtorch's kernels change bits with alignment.
inline constexpr int64_t kAlignmentBytes = 64;

}  // namespace lockstep
