#include "lockstep/optim/clip.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace lockstep::optim {

namespace {

std::vector<at::Tensor> defined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> kept;
  std::ranges::copy_if(tensors, std::back_inserter(kept), [](const at::Tensor& tensor) { return tensor.defined(); });
  return kept;
}

constexpr int kUnits = 4, kUnitBits = 20;
constexpr int64_t kElementsAtOnce = 1 << 20;  // copied to double

// The largest |element|; infinite when one is infinite or NaN.
double largest_magnitude(const std::vector<at::Tensor>& tensors) {
  double largest = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const double own = tensor.abs().max().item<double>();
    largest = std::isfinite(own) ? std::max(largest, own) : std::numeric_limits<double>::infinity();
  }
  return largest;
}

// units[k] += the bits [20 k, 20 (k + 1)) behind the point of each (x / scale)^2, which is below 1.
void add_squares(const at::Tensor& x, double scale, std::array<double, kUnits>& units) {
  at::Tensor rest = x.to(at::kDouble).div(scale).square_();
  for (double& unit : units) {
    rest.mul_(std::ldexp(1.0, kUnitBits));
    const at::Tensor whole = rest.floor();
    unit += whole.sum().item<double>();
    rest.sub_(whole);
  }
}

}  // namespace

double squared_norm(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> present = defined(gradients);
  if (present.empty()) return 0;
  return at::stack(at::_foreach_norm(present, 2, at::kDouble)).square().sum().item<double>();
}

double squared_norm_over_ranks(const std::vector<at::Tensor>& counted, comm::ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> present = defined(counted);
  const std::vector<at::Tensor> norms = present.empty() ? present : at::_foreach_norm(present, 2, at::kDouble);
  std::vector<double> squares;
  auto next = norms.begin();
  for (const at::Tensor& gradient : counted) {
    squares.push_back(gradient.defined() ? (next++)->square().item<double>() : 0);
  }
  at::Tensor of_parameter = at::tensor(squares, at::kDouble);
  all_reduce(of_parameter, group, Reduction::sum, {.tag = "gradient norm"});
  return of_parameter.sum().item<double>();
}

double order_free_squared_norm(const std::vector<at::Tensor>& counted, comm::ProcessGroup* group) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> present = defined(counted);
  double largest = largest_magnitude(present);
  const auto over_ranks = [&](double* values, int64_t count, Reduction reduction) {
    at::Tensor wire = at::from_blob(values, {count}, at::kDouble);
    if (group != nullptr) all_reduce(wire, *group, reduction, {.tag = "gradient norm"});
  };
  over_ranks(&largest, 1, Reduction::max);
  if (largest == 0 || !std::isfinite(largest)) return largest;
  int exponent = 0;
  std::frexp(largest, &exponent);
  const double scale = std::ldexp(1.0, exponent);  // above the largest
  std::array<double, kUnits> units{};
  for (const at::Tensor& tensor : present) {
    for (const at::Tensor& part : tensor.flatten().split(kElementsAtOnce)) add_squares(part, scale, units);
  }
  over_ranks(units.data(), kUnits, Reduction::sum);
  double sum = 0;
  for (int unit = kUnits; unit-- > 0;) sum = std::ldexp(sum + units[static_cast<size_t>(unit)], -kUnitBits);
  return sum * scale * scale;
}

double clip_scale(double norm, double max_norm) {
  if (max_norm == 0 || !std::isfinite(norm)) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

void scale(const std::vector<at::Tensor>& gradients, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> present = defined(gradients);
  if (!present.empty()) at::_foreach_mul_(present, factor);
}

double clip_by_global_norm(const std::vector<at::Tensor>& gradients, double max_norm) {
  const double norm = std::sqrt(squared_norm(gradients));
  scale(gradients, clip_scale(norm, max_norm));
  return norm;
}

}  // namespace lockstep::optim
