// Rotary positions in the convention of Hugging Face's Llama: dim i of the first half of a head turns with dim i of the
// second half, by the angle position * theta^(-2i/D).
//   source   Su et al. 2021, "RoFormer: enhanced transformer with rotary position embedding"
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// Cosines and sines of the angles of some positions: [S, D/2] each.
struct RopeTables {
  at::Tensor cos, sin;
};

// For positions 0 .. sequence - 1; computed in double, then rounded to the options' dtype.
RopeTables make_rope_tables(int64_t sequence, int64_t head_size, double theta, const at::TensorOptions& options);

// x_BNSD with each pair turned by its position's angle.
at::Tensor apply_rope(const at::Tensor& x_BNSD, const RopeTables& tables);

}  // namespace lockstep::nn
