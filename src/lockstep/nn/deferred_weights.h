// The half of a backward that nobody waits for, put off: a linear layer's backward gives its input's gradient at once
// (I), and keeps what the gradients of its weight and bias are made of until they are asked for (W). Schedules without
// bubbles fill idle time with W.
//
//   B   dY -> dX, dW, db
//   I   dY -> dX                keeps x and dY
//   W   x, dY -> dW, db         frees them
//
//   source   Qi et al. 2023, "Zero bubble pipeline parallelism"
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace lockstep::nn {

// What one layer's backward puts off.
struct WeightWork {
  std::vector<at::Tensor> parameters;  // weights and biases; each requires a gradient
  std::vector<at::Tensor> kept;        // what their gradients are made of, without history
  // Starts the exchanges it needs, if any, and returns what computes the gradients, one per parameter. Called once, and
  // so is what it returns.
  std::function<std::function<std::vector<at::Tensor>()>(const std::vector<at::Tensor>& kept)> start;
};

// The put-off work of one rank. Layers are given it when they are made (local_seams.h, tensor_parallel.h) and ask it in
// their backward. The parameters of other layers (norms, embeddings) have their gradients after I.
//
//   DeferredWeights deferred;
//   nn::LocalSeams seams(seed, {&deferred});
//   ...
//   {                                                       // I of micro-batch 3 on stage 1
//     const auto deferral = deferred.defer({1, 3});
//     output.backward(gradient);
//   }
//   ...
//   deferred.drain({1, 3});                                 // W
class DeferredWeights {
 public:
  struct Key {
    int stage = 0, microbatch = 0;
    auto operator<=>(const Key&) const = default;
  };

  // While it lives, backwards put off under its key. Without one they compute all gradients (B). None within another.
  class Deferral {
   public:
    Deferral(DeferredWeights& owner, Key key);
    ~Deferral() { owner_.current_ = nullptr; }
    Deferral(const Deferral&) = delete;
    Deferral& operator=(const Deferral&) = delete;

   private:
    DeferredWeights& owner_;
  };
  [[nodiscard]] Deferral defer(Key key) { return Deferral(*this, key); }

  // Computes what was put off under the key, in the order in which it was, and adds it to the parameters' gradients in
  // one backward of autograd's: hooks run for each as they do in B. May be nothing, where no layer defers; but the key
  // must have been used, and is forgotten. Where layers are split over ranks, these drain in the same order.
  void drain(Key key);

  bool empty() const { return works_.empty(); }
  // Memory that put-off work keeps alive, a storage counting once.
  int64_t kept_bytes() const;

  // For layers, in their backward.
  bool deferring() const { return current_ != nullptr; }
  void put_off(WeightWork work);

 private:
  std::map<Key, std::vector<WeightWork>> works_;
  std::vector<WeightWork>* current_ = nullptr;  // of the key whose backward is under way
};

}  // namespace lockstep::nn
