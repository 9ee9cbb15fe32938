// The two moments of a backward that gradient reduction waits for. Both run in the thread of that backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::parallel {

// While it lives, calls `arrived` whenever a backward has added a gradient to parameter.grad(). One per parameter. A
// backward that leads to the parameter but brings no gradient (a layer puts it off, a branch was not taken) is no
// arrival, though libtorch runs its hooks then too.
class GradientHook {
 public:
  GradientHook(at::Tensor parameter, std::function<void()> arrived);
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

 private:
  at::Tensor parameter_;
  unsigned before_ = 0;  // the hook that sees what is about to be added
};

// In how many of the backwards that reduce gradients a parameter's arrives, by name; null: in one. It is complete with
// the last. A backward in two halves (nn/deferred_weights.h) counts as two, but brings each gradient in one of them: a
// weight of two uses whose gradients come apart arrives twice, as a tied head and embedding of two pipeline stages do.
using Arrivals = std::function<int(const std::string& name)>;
std::vector<int> arrivals_of(std::span<const std::string> names, const Arrivals& arrivals);

// From within a backward: calls something when that backward ends, once, however often it is asked for.
class EndOfBackward {
 public:
  void call(std::function<void()> ended);

 private:
  int graph_ = -1;  // the backward that has been asked
};

}  // namespace lockstep::parallel
