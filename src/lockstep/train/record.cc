#include "lockstep/train/record.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

// NaN where the difference is not a number must not look like agreement.
double at_least(double current, double value) {
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : std::max(current, value);
}

double relative(double value, double reference) {
  return value == reference ? 0 : std::abs(value - reference) / std::max(std::abs(reference), 1e-300);
}

// The largest error of one kind of tensors; names the worst and clears `bitwise` when bits differ.
double compare_tensors(const std::vector<NamedTensor>& reference, const std::vector<NamedTensor>& layout, bool& bitwise,
                       std::string* worst) {
  LOCKSTEP_CHECK(reference.size() == layout.size(), reference.size(), " tensors against ", layout.size());
  double scale = 0, result = 0;
  for (const NamedTensor& tensor : reference) scale = std::max(scale, largest(tensor.tensor));
  for (size_t i = 0; i < reference.size(); ++i) {
    const at::Tensor &x = layout[i].tensor, &y = reference[i].tensor;
    LOCKSTEP_CHECK(reference[i].name == layout[i].name && x.sizes() == y.sizes(), reference[i].name, " against ",
                   layout[i].name);
    if (at::equal(x, y)) continue;
    bitwise = false;
    const double error = largest(x.to(at::kDouble) - y.to(at::kDouble)) / std::max({largest(y), 1e-3 * scale, 1e-300});
    if (worst != nullptr && !(error <= result)) *worst = reference[i].name;
    result = at_least(result, error);
  }
  return result;
}

at::Tensor scalar(double value) {
  return at::full({1}, value, at::kDouble);
}

}  // namespace

std::vector<NamedTensor> copy_gradients(const std::vector<nn::Parameter>& parameters) {
  std::vector<NamedTensor> result;
  for (const nn::Parameter& parameter : parameters) {
    const at::Tensor& gradient = parameter.tensor.grad();
    result.push_back({parameter.spec.name,
                      gradient.defined() ? gradient.detach().clone() : at::zeros_like(parameter.tensor.detach())});
  }
  return result;
}

std::vector<NamedTensor> copy_weights(const std::vector<nn::Parameter>& parameters) {
  std::vector<NamedTensor> result;
  for (const nn::Parameter& parameter : parameters)
    result.push_back({parameter.spec.name, parameter.tensor.detach().clone()});
  return result;
}

std::vector<NamedTensor> copy_state(const optim::Optimizer& optimizer) {
  std::vector<NamedTensor> result;
  for (const optim::State& state : optimizer.state())
    result.push_back({text(state.parameter, "/", state.name), state.tensor.detach().clone()});
  return result;
}

void write_record(const std::filesystem::path& path, const RunRecord& record) {
  std::vector<NamedTensor> all;
  for (size_t step = 0; step < record.steps.size(); ++step) {
    const std::string prefix = text("step/", step, "/");
    all.push_back({prefix + "loss", scalar(record.steps[step].loss)});
    all.push_back({prefix + "grad_norm", scalar(record.steps[step].grad_norm)});
    for (const auto& gradient : record.steps[step].gradients)
      all.push_back({prefix + "gradient/" + gradient.name, gradient.tensor});
  }
  for (const auto& tensor : record.parameters) all.push_back({"parameter/" + tensor.name, tensor.tensor});
  for (const auto& tensor : record.state) all.push_back({"state/" + tensor.name, tensor.tensor});
  checkpoint::write_safetensors(path, all);
}

RunRecord read_record(const std::filesystem::path& path) {
  RunRecord record;
  for (const auto& [name, tensor] : checkpoint::read_safetensors(path)) {
    const size_t slash = name.find('/');
    const std::string kind = name.substr(0, slash), rest = name.substr(slash + 1);
    if (kind == "parameter") record.parameters.push_back({rest, tensor});
    if (kind == "state") record.state.push_back({rest, tensor});
    if (kind != "step") continue;
    const size_t step = std::stoul(rest);
    const std::string what = rest.substr(rest.find('/') + 1);
    if (step >= record.steps.size()) record.steps.resize(step + 1);
    StepRecord& current = record.steps[step];
    if (what == "loss") current.loss = tensor.item<double>();
    if (what == "grad_norm") current.grad_norm = tensor.item<double>();
    if (what.starts_with("gradient/")) current.gradients.push_back({what.substr(9), tensor});
  }
  return record;
}

Comparison compare(const RunRecord& reference, const RunRecord& layout) {
  LOCKSTEP_CHECK(reference.steps.size() == layout.steps.size());
  Comparison result;
  for (size_t step = 0; step < reference.steps.size(); ++step) {
    const StepRecord &expected = reference.steps[step], &actual = layout.steps[step];
    result.max_rel_loss = at_least(result.max_rel_loss, relative(actual.loss, expected.loss));
    result.rel_norm = at_least(result.rel_norm, relative(actual.grad_norm, expected.grad_norm));
    std::string worst;
    const double error = compare_tensors(expected.gradients, actual.gradients, result.bitwise, &worst);
    if (!(error <= result.max_rel_grad)) result.worst_parameter = worst;
    result.max_rel_grad = at_least(result.max_rel_grad, error);
    if (step == 0) result.first_rel_grad = error;
  }
  result.max_rel_param = compare_tensors(reference.parameters, layout.parameters, result.bitwise, &result.worst_weight);
  result.max_rel_state = compare_tensors(reference.state, layout.state, result.bitwise, nullptr);
  return result;
}

}  // namespace lockstep::train
