// Arithmetic and copies over contiguous memory: the part of a collective that costs bandwidth.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// outputs[*][i] <- the reduction of inputs[*][i] over all inputs, i in [0, count).
//
// The order is a balanced tree over the inputs: n of them split at the largest power of two below n. bf16 and f16 are
// combined in f32 and rounded once. NaN in any input gives NaN, also with min and max. Integers wrap around.
//   outputs    each may be one of the inputs, but overlap none in another way
//   streaming  write past the caches: for results so large that they would not stay there anyway
void reduce(DataType type, Reduction reduction, std::span<const void* const> inputs, std::span<void* const> outputs,
            int64_t count, bool streaming);

// in_out[i] <- in_out[i] / divisor, rounded once. Not for integers.
void divide(DataType type, void* in_out, int64_t count, int64_t divisor);

// As memcpy; does nothing when both are the same address.
void copy(void* to, const void* from, int64_t bytes, bool streaming);

// From this size on streaming wins.
inline constexpr int64_t kStreamingBytes = 16 << 20;

}  // namespace lockstep::comm
