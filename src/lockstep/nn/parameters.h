// A model's parameters as tensors, created from the list in spec/. Initial values depend on seed, name and the
// element's place in the global tensor only, so every layout starts from the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "lockstep/spec/model.h"
#include "lockstep/spec/placement.h"

namespace lockstep::nn {

struct Parameter {
  spec::ParameterSpec spec;
  at::Tensor tensor;    // what this rank holds of it; begins on a 64-byte boundary
  mesh::Region region;  // the box of the whole that is; along dim 0 zeros of padding may follow it
};

// The part of a parameter's tensor, or of its gradient or moments, that is no padding. A view.
at::Tensor without_padding(const at::Tensor& slice, const mesh::Region& region);

// The box of a whole tensor. A view.
at::Tensor part_of(at::Tensor whole, const mesh::Region& region);

struct TensorPlace {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// Fills `slice`, the box of the global parameter that begins at `offset` (one number per dim), with initial values:
// drawn in double, then rounded to the slice's dtype. The spread is the spec's, whatever the slice.
void fill_initial(at::Tensor& slice, const spec::ParameterSpec& parameter, uint64_t seed,
                  std::span<const int64_t> offset);

// Every parameter whole, requiring gradients, in the order of `list`; tied ones are left out: they have no storage.
std::vector<Parameter> create_parameters(const std::vector<spec::ParameterSpec>& list, uint64_t seed,
                                         TensorPlace place = {});

// The slices of one rank, whose places spec::place_on_rank says.
std::vector<Parameter> create_parameters(const std::vector<spec::ParameterSpec>& list,
                                         const std::vector<spec::ParameterPlace>& places, uint64_t seed,
                                         TensorPlace place = {});

}  // namespace lockstep::nn
