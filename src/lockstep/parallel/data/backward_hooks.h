// The two moments of a backward that gradient reduction waits for. Both run in the thread of that backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace lockstep::parallel {

// Calls `arrived` whenever a backward has completed parameter.grad(); null: no longer. One per parameter.
void when_gradient_arrives(const at::Tensor& parameter, std::function<void()> arrived);

// From within a backward: calls something when that backward ends, once, however often it is asked for.
class EndOfBackward {
 public:
  void call(std::function<void()> ended);

 private:
  int graph_ = -1;  // the backward that has been asked
};

}  // namespace lockstep::parallel
