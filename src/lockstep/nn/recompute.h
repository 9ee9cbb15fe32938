// Activation recomputation: a segment of a model keeps only its inputs, and runs again in backward to get what its
// gradient needs. It trades computation for memory:
//
//   forward    inputs -> [segment] -> outputs        what the segment keeps for its gradient is dropped
//   backward   inputs -> [segment again] -> its gradient, then what it kept is dropped again
//
//   source   Chen et al. 2016, "Training deep nets with sublinear memory cost"
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace lockstep::nn {

// Tensors in, tensors out. It runs twice, so it must compute the same from the same inputs and the same state of
// libtorch's random generators, and what it refers to must live until backward.
using SegmentFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Called before a function runs again; what it returns lives until the function has run (a span of a trace).
using BeginRerun = std::function<std::shared_ptr<void>()>;

// function(inputs), with its activations recomputed in backward. For any function: a block of our transformer, or some
// layers of a module of the user's own, which may recompute parts of itself in turn.
//
//   const auto segment = [&](const std::vector<at::Tensor>& in) { return std::vector{net->block(in[0])}; };
//   at::Tensor out = lockstep::nn::recompute(segment, {x}).front();
//
// Gradients have the bits that they have without it; those of tensors that are used three times or more, within and
// outside of the segment, may be added in another order. Both runs see the same state of libtorch's generators (of the
// CPU and of the inputs' device; the generators go on as if there was one run) and the same autocast setting. Inputs
// may be undefined or require no gradient; outputs may be several, and of any type.
//   inputs   kept until backward. A tensor that requires a gradient and has a history must be among them; parameters
//            that the function uses need not be: they are found, so hooks and torch::autograd::grad work on them
//   keeps    the inputs and, when the function draws from a generator, its state (5 KiB on the CPU)
//   costs    the function's forward once more; gradients of all of its parameters exist at once before they are added
//            to those of earlier micro-batches
//   throws   InvalidArgument when the function changes an input in place, or uses a tensor with a history that is not
//            among the inputs; in backward, Unsupported for a gradient of a gradient
// Without gradient mode this is function(inputs). Generators belong to the process: ranks that are threads must not
// draw from them inside of segments.
std::vector<at::Tensor> recompute(SegmentFunction function, const std::vector<at::Tensor>& inputs,
                                  BeginRerun begin_rerun = nullptr);

}  // namespace lockstep::nn
