// The training states of a rank: weights, gradients and the optimizer's, whole on all ranks that hold the same
// (parallel.zero = 0) or sharded over them. The trainer does not know which.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/schedule/table.h"
#include "lockstep/spec/placement.h"
#include "lockstep/spec/plan.h"
#include "lockstep/train/build.h"
#include "lockstep/train/record.h"

namespace lockstep::train {

// All but parts() are called by every rank, in the same order. Tensors are what a rank holds of parameters without
// sharding, in the order of the model's.
class States {
 public:
  virtual ~States() = default;

  virtual void zero_grad() = 0;
  // Parameters of the stage stay whole between the two, where they are sharded.
  virtual void unshard(int /*stage*/) {}
  virtual void reshard(int /*stage*/) {}
  // `run` computes what the action of this rank's list says: a backward, or a half of one.
  virtual void backward(const schedule::Action& action, const std::function<void()>& run) = 0;
  // The stage's gradients are summed over the ranks that hold the same when it returns.
  virtual void finish(int stage) = 0;
  // After all of them: adds the gradients of what other stages hold a copy of.
  virtual void add_tied() = 0;

  // After add_tied(): multiplies the gradient by `factor`, the inverse of what the loss was multiplied by.
  virtual void unscale(double factor) = 0;
  // Sum of squares of the whole model's gradient, each element once: the same on every rank.
  virtual double squared_gradient_norm() = 0;
  // Multiplies the gradient by `gradient_scale` and updates the weights with the learning rate `lr`.
  virtual void update(double lr, double gradient_scale) = 0;
  // The first of this rank's parameters whose gradient is not finite; empty when all are.
  virtual std::string first_not_finite() = 0;

  // What stands around the model's parts; null: nothing.
  virtual nn::PartSeam* parts() { return nullptr; }

  // Copies. `gradients`: zeros where there is none.
  virtual std::vector<NamedTensor> gradients() = 0;
  virtual std::vector<NamedTensor> optimizer_state() = 0;  // "layers.0...weight/exp_avg"
  // Not copies where there is no sharding. With `to_save` ranks that write no weights may get none.
  virtual std::vector<NamedTensor> weights(bool to_save) = 0;
};

// What states are made from; all of it must outlive them.
struct StatesContext {
  const spec::RunPlan& plan;
  Built& built;                                     // sharded states take the masters of low precision out of it
  const std::vector<spec::ParameterPlace>& places;  // of the model's parameters
  comm::ProcessGroup& world;
  comm::ProcessGroup& data_group;
  comm::ProcessGroup& tensor_group;
  comm::ProcessGroup& model_group;               // the ranks that hold one copy of the model: tensor and pipeline
  const std::vector<schedule::Action>& actions;  // this rank's list of a step
};
std::unique_ptr<States> make_states(const StatesContext& context);

// As build(); but sharded states give parameters their values, and memory, one by one: no rank ever holds whole what it
// is to share. With plan.model.weights it is read whole first.
Built build_for_states(const spec::RunPlan& plan, const std::vector<spec::ParameterSpec>& held,
                       const std::vector<spec::ParameterPlace>& places, at::Device device);

// Whether every data rank must run equally many micro-batches: they meet in each, or reduce several stages' gradients,
// whose order depends on the list.
bool meets_in_each_microbatch(const spec::ParallelSpec& parallel);

}  // namespace lockstep::train
