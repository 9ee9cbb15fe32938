// A stage of a pipeline: a module of the user's, and how it is called. One tensor comes in and one goes out.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>

namespace lockstep::parallel {

struct PipelineStage {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;

  // Of its first parameter, or else its first buffer; none for a module that has neither.
  std::optional<at::Device> device() const;
  // The module's output for `input`, which is copied to the stage's device first.
  at::Tensor run(const at::Tensor& input) const;
};

// Of anything with `->forward(tensor)`: a holder of torch's (torch::nn::Sequential, a TORCH_MODULE) or a shared_ptr.
template <class Module>
PipelineStage stage_of(const Module& module) {
  const auto forward = [module](const at::Tensor& input) -> at::Tensor { return Module(module)->forward(input); };
  if constexpr (requires { module.ptr(); }) {
    return {module.ptr(), forward};
  } else {
    return {module, forward};
  }
}

}  // namespace lockstep::parallel
