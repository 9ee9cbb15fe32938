#include "lockstep/nn/recompute.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/torch.h>

#include <array>
#include <mutex>
#include <unordered_set>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// What a function's result depends on besides its inputs: generators' states and the autocast setting.
class Surroundings {
 public:
  static Surroundings now(const std::vector<at::Device>& devices) {
    Surroundings result;
    for (const at::Device device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      result.generators_.push_back({device, generator.get_state()});
    }
    for (size_t i = 0; i < kTypes.size(); ++i) {
      result.autocast_[i] = {at::autocast::is_autocast_enabled(kTypes[i]), at::autocast::get_autocast_dtype(kTypes[i])};
    }
    return result;
  }

  void restore() const {
    for (const auto& [device, state] : generators_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
    for (size_t i = 0; i < kTypes.size(); ++i) {
      at::autocast::set_autocast_enabled(kTypes[i], autocast_[i].enabled);
      at::autocast::set_autocast_dtype(kTypes[i], autocast_[i].dtype);
    }
  }

  // Forgets generators that did not move since: whoever drew nothing will draw nothing again.
  void keep_used_generators() {
    std::erase_if(generators_, [](const GeneratorState& then) {
      at::Generator generator = at::globalContext().defaultGenerator(then.device);
      const std::lock_guard lock(generator.mutex());
      return at::equal(generator.get_state(), then.bytes);
    });
  }

  std::vector<at::Device> devices() const {
    std::vector<at::Device> result;
    for (const auto& generator : generators_) result.push_back(generator.device);
    return result;
  }

 private:
  static constexpr std::array kTypes = {at::kCPU, at::kCUDA};
  struct GeneratorState {
    at::Device device;
    Tensor bytes;
  };
  struct Autocast {
    bool enabled = false;
    at::ScalarType dtype = at::kBFloat16;
  };
  std::vector<GeneratorState> generators_;
  std::array<Autocast, 2> autocast_;
};

// While it lives, the surroundings are those of `then`.
class Return {
 public:
  explicit Return(const Surroundings& then) : before_(Surroundings::now(then.devices())) { then.restore(); }
  ~Return() { before_.restore(); }
  Return(const Return&) = delete;
  Return& operator=(const Return&) = delete;

 private:
  Surroundings before_;
};

// Autocast keeps converted weights with the graph of whoever converted them first: that may be another segment, whose
// graph is gone by the time of this one's backward.
class NoAutocastCache {
 public:
  NoAutocastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_ = at::autocast::is_autocast_cache_enabled();
};

// The CPU, and the device of the first input that is elsewhere.
std::vector<at::Device> devices_of(const Tensors& inputs) {
  std::vector<at::Device> devices = {at::kCPU};
  for (const Tensor& input : inputs) {
    if (devices.size() == 1 && input.defined() && !input.is_cpu()) devices.push_back(input.device());
  }
  return devices;
}

// The same values, where the segment's own graph begins.
Tensors detached(const Tensors& inputs) {
  Tensors result;
  for (const Tensor& input : inputs) {
    result.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad()) : input);
  }
  return result;
}

std::vector<uint32_t> versions_of(const Tensors& inputs) {
  std::vector<uint32_t> result;
  for (const Tensor& input : inputs) {
    result.push_back(input.defined() && !input.is_inference() ? static_cast<uint32_t>(input._version()) : 0);
  }
  return result;
}

// The leaves that a graph made since `first_sequence` leads to, besides the inputs that it began with: parameters.
Tensors parameters_of(const Tensors& outputs, const Tensors& inputs, uint64_t first_sequence) {
  std::unordered_set<at::TensorImpl*> found;
  for (const Tensor& input : inputs) found.insert(input.unsafeGetTensorImpl());
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> to_visit;
  const auto add = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  for (const Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) add(torch::autograd::impl::gradient_edge(output).function.get());
  }
  Tensors parameters;
  while (!to_visit.empty()) {
    torch::autograd::Node* node = to_visit.back();
    to_visit.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (found.insert(leaf->variable.unsafeGetTensorImpl()).second) parameters.push_back(leaf->variable);
    } else if (node->sequence_nr() < first_sequence) {
      throw InvalidArgument(text("recompute: the function uses a tensor made before it (by ", node->name(),
                                 ") that is not among its inputs: pass it as an input"));
    }
    for (const auto& edge : node->next_edges()) add(edge.function.get());
  }
  return parameters;
}

struct Segment : torch::CustomClassHolder {
  SegmentFunction function;
  BeginRerun begin_rerun;
  Surroundings surroundings;
  size_t num_inputs = 0;
  std::vector<size_t> defined;  // which inputs are; autograd takes no others
  Tensors outputs;              // on their way into the graph

  Tensors run(const Tensors& inputs) const {
    const torch::AutoGradMode grad_mode(true);
    const NoAutocastCache no_cache;
    return function(inputs);
  }
};

// In the outer graph, one node from the outputs to the inputs and the parameters.
class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static Tensors forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<Segment>& segment,
                         at::TensorList inputs_and_parameters) {
    context->save_for_backward(inputs_and_parameters.vec());
    context->set_materialize_grads(false);
    Tensors outputs, constant;
    for (const Tensor& output : std::exchange(segment->outputs, {})) {
      outputs.push_back(output.defined() ? output.detach() : output);
      if (!output.defined() || !output.requires_grad()) constant.push_back(outputs.back());
    }
    context->mark_non_differentiable(constant);
    context->saved_data["segment"] = c10::IValue::make_capsule(segment);
    return outputs;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& output_gradients) {
    if (at::GradMode::is_enabled()) {
      throw Unsupported("recompute: a gradient of a gradient needs the segment's graph: call the function without it");
    }
    const auto holder = context->saved_data["segment"].toCapsule();
    const auto& segment = static_cast<const Segment&>(*holder);
    const Tensors saved = context->get_saved_variables();
    Tensors leaves = detached({saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(segment.defined.size())});
    Tensors inputs(segment.num_inputs);
    for (size_t i = 0; i < leaves.size(); ++i) inputs[segment.defined[i]] = leaves[i];
    const Tensors outputs = rerun(segment, inputs);
    leaves.insert(leaves.end(), saved.begin() + static_cast<std::ptrdiff_t>(leaves.size()), saved.end());

    Tensors from, gradients, to;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!output_gradients[i].defined() || !outputs[i].requires_grad()) continue;
      from.push_back(outputs[i]);
      gradients.push_back(output_gradients[i]);
    }
    Tensors result(1 + saved.size());  // forward's first argument is no tensor
    std::vector<size_t> place;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!leaves[i].requires_grad()) continue;
      to.push_back(leaves[i]);
      place.push_back(1 + i);
    }
    if (from.empty()) return result;
    Tensors found = torch::autograd::grad(from, to, gradients, /*retain_graph=*/false, /*create_graph=*/false,
                                          /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) result[place[i]] = std::move(found[i]);
    return result;
  }

 private:
  static Tensors rerun(const Segment& segment, const Tensors& inputs) {
    const Return surroundings(segment.surroundings);
    const std::shared_ptr<void> watch = segment.begin_rerun ? segment.begin_rerun() : nullptr;
    return segment.run(inputs);
  }
};

}  // namespace

Tensors recompute(SegmentFunction function, const Tensors& inputs, BeginRerun begin_rerun) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto segment = c10::make_intrusive<Segment>();
  segment->function = std::move(function);
  segment->begin_rerun = std::move(begin_rerun);
  segment->surroundings = Surroundings::now(devices_of(inputs));
  segment->num_inputs = inputs.size();

  // The first run makes a graph too, for as long as it takes to see which parameters it leads to.
  Tensors inputs_and_parameters;
  {
    const uint64_t first_sequence = at::sequence_number::peek();
    const std::vector<uint32_t> versions = versions_of(inputs);
    const Tensors own_inputs = detached(inputs);
    segment->outputs = segment->run(own_inputs);
    segment->surroundings.keep_used_generators();
    if (versions_of(inputs) != versions) {
      throw InvalidArgument("recompute: the function changed an input in place, so it cannot run again from it");
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      inputs_and_parameters.push_back(inputs[i]);
      segment->defined.push_back(i);
    }
    for (Tensor& parameter : parameters_of(segment->outputs, own_inputs, first_sequence)) {
      inputs_and_parameters.push_back(std::move(parameter));
    }
  }
  return Recomputed::apply(segment, at::TensorList(inputs_and_parameters));
}

}  // namespace lockstep::nn
