#include "lockstep/optim/clip.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace lockstep::optim {

namespace {

std::vector<at::Tensor> defined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> kept;
  std::ranges::copy_if(tensors, std::back_inserter(kept), [](const at::Tensor& tensor) { return tensor.defined(); });
  return kept;
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
