#include "lockstep/nn/parameters.h"

#include <torch/torch.h>

#include "lockstep/base/rng.h"
#include "lockstep/base/units.h"

namespace lockstep::nn {

namespace {

// Row-major index in the global tensor of the first element of the slice's row number `row` (rows run along the last
// dim).
int64_t global_row_start(int64_t row, at::IntArrayRef slice_sizes, std::span<const int64_t> global_shape,
                         std::span<const int64_t> offset) {
  const size_t dims = global_shape.size();
  int64_t start = offset[dims - 1], stride = global_shape[dims - 1];
  for (size_t dim = dims - 1; dim-- > 0;) {
    start += (offset[dim] + row % slice_sizes[dim]) * stride;
    row /= slice_sizes[dim];
    stride *= global_shape[dim];
  }
  return start;
}

void fill_normal(at::Tensor& slice, const spec::ParameterSpec& parameter, uint64_t seed,
                 std::span<const int64_t> offset) {
  const CounterRng rng(seed, parameter.name);
  at::Tensor values = at::empty(slice.sizes(), at::kDouble);
  double* out = values.mutable_data_ptr<double>();
  const int64_t row_size = slice.size(-1), rows = row_size == 0 ? 0 : slice.numel() / row_size;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = global_row_start(row, slice.sizes(), parameter.shape, offset);
    for (int64_t i = 0; i < row_size; ++i) *out++ = parameter.init.std * rng.normal(static_cast<uint64_t>(start + i));
  }
  slice.copy_(values);
}

}  // namespace

void fill_initial(at::Tensor& slice, const spec::ParameterSpec& parameter, uint64_t seed,
                  std::span<const int64_t> offset) {
  LOCKSTEP_CHECK(slice.dim() == static_cast<int64_t>(parameter.shape.size()) && offset.size() == parameter.shape.size(),
                 "parameter ", parameter.name);
  const at::NoGradGuard no_grad;
  switch (parameter.init.kind) {
    case spec::Init::Kind::zeros:
      slice.zero_();
      break;
    case spec::Init::Kind::ones:
      slice.fill_(1);
      break;
    case spec::Init::Kind::normal:
      fill_normal(slice, parameter, seed, offset);
      break;
  }
}

at::Tensor without_padding(const at::Tensor& slice, const mesh::Region& region) {
  return slice.size(0) == region.size[0] ? slice : slice.narrow(0, 0, region.size[0]);
}

at::Tensor part_of(at::Tensor whole, const mesh::Region& region) {
  for (size_t dim = 0; dim < region.size.size(); ++dim) {
    whole = whole.narrow(static_cast<int64_t>(dim), region.offset[dim], region.size[dim]);
  }
  return whole;
}

std::vector<Parameter> create_parameters(const std::vector<spec::ParameterSpec>& list, uint64_t seed,
                                         TensorPlace place) {
  return create_parameters(list, spec::whole_places(list), seed, place);
}

std::vector<Parameter> create_parameters(const std::vector<spec::ParameterSpec>& list,
                                         const std::vector<spec::ParameterPlace>& places, uint64_t seed,
                                         TensorPlace place) {
  std::vector<Parameter> parameters;
  for (const spec::ParameterSpec& spec : list) {
    if (!spec.tied_to.empty()) continue;
    const spec::ParameterPlace& on_rank = places.at(parameters.size());
    at::Tensor tensor = at::zeros(on_rank.shape, at::TensorOptions(place.device).dtype(place.dtype));
    LOCKSTEP_CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % kAlignmentBytes == 0, "parameter ", spec.name);
    at::Tensor slice = without_padding(tensor, on_rank.region);
    fill_initial(slice, spec, seed, on_rank.region.offset);
    parameters.push_back({spec, tensor.requires_grad_(), on_rank.region});
  }
  LOCKSTEP_CHECK(parameters.size() == places.size(), parameters.size(), " parameters, ", places.size(), " places");
  return parameters;
}

}  // namespace lockstep::nn
