// The one loop of training: a pipeline rank's list of actions, interpreted. What an action computes is the caller's;
// here are the order, the messages between stages, and how long a micro-batch's activations are kept.
//
// Sends and receives are posted where the table has them; a rank waits where it uses a message. A stage's graph is kept
// from its forward (or recomputation) to its backward or input gradient, and freed there.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/stage_messages.h"
#include "lockstep/schedule/table.h"

namespace lockstep::parallel {

// What actions do on this rank. Stages and micro-batches are numbered as in the table.
class StageWork {
 public:
  virtual ~StageWork() = default;

  // The stage's output for `input`, which is a leaf that requires a gradient; undefined for the first stage, which has
  // inputs of its own. The last stage's output is a scalar: its loss, as it enters the gradient. Called again for a
  // recomputation.
  virtual at::Tensor forward(const schedule::Action& action, const at::Tensor& input) = 0;

  // Backward from `output`, to which the graph belongs, with its gradient (undefined: 1, of a loss). For
  // schedule::Action::Kind::input_grad parameters may get theirs in weight_gradient.
  virtual void backward(const schedule::Action& action, const at::Tensor& output, const at::Tensor& gradient) = 0;
  virtual void weight_gradient(const schedule::Action& action) = 0;

  virtual void unshard(int stage) = 0;
  virtual void reshard(int stage) = 0;
  virtual void reduce_gradient(int stage) = 0;
  // Before the step: what it needs of other ranks, for which this one may have to wait.
  virtual void before_optimizer_step() {}
  virtual void optimizer_step() = 0;

  // Where a stage's input has to be; none: anywhere.
  virtual std::optional<at::Device> device(int stage) const = 0;
};

class Executor {
 public:
  // The table is whole, with its communication. `group` and `work` must outlive this; rank r of the group is rank r of
  // the table.
  Executor(schedule::Table table, comm::ProcessGroup& group, StageWork& work);

  // Performs this rank's list once. `announce`: shapes of messages may differ from those of the run before. Without
  // `with_gradients` nothing is kept for a backward, and the list must have none.
  //   throws what the work or a message throws; after that no run is possible
  void run(bool announce, bool with_gradients = true);

  const schedule::Table& table() const { return table_; }
  const std::vector<schedule::Action>& actions() const;  // this rank's
  // What the last run did, as it was done: the list, or there is an error of ours.
  const std::vector<schedule::Action>& recorded() const { return recorded_; }
  // The most whose activations were kept at once in the last run, counted while it ran, in micro-batches of the whole
  // rank: each of its v stages counts 1/v.
  double in_flight_peak() const;
  double waited_s() const { return waited_s_; }  // of the last run: for messages of other stages

 private:
  // What a stage holds of a micro-batch from forward to backward.
  struct Held {
    at::Tensor input;      // a leaf of the stage's graph
    at::Tensor output;     // with the graph
    at::Tensor generator;  // state when the forward began, if it is to run again
  };
  using Key = std::pair<int, int>;  // stage, micro-batch

  void perform(const schedule::Action& action);
  void compute(const schedule::Action& action, const std::function<void()>& work);  // and records it
  void forward(const schedule::Action& action);
  void recompute(const schedule::Action& action);
  void backward(const schedule::Action& action);
  at::Tensor to_device(const at::Tensor& tensor, int stage) const;
  at::Tensor input_of(int stage, int microbatch);
  at::Tensor gradient_of(int stage, int microbatch);
  at::Tensor take(const schedule::Action& receive);

  const schedule::Table table_;
  comm::ProcessGroup& group_;
  StageWork& work_;
  StageMessages messages_;
  bool recomputes_ = false;
  size_t own_stages_ = 0;

  // Of the run under way.
  bool with_gradients_ = true;
  std::map<Key, Held> held_;
  std::map<Key, at::Tensor> input_gradients_;  // between a backward and the send, or the backward of the stage before
  std::vector<schedule::Action> recorded_;
  size_t awaiting_weights_ = 0;  // micro-batches of stages between their input gradient and their weight gradient
  size_t most_alive_ = 0;
  double waited_s_ = 0;
};

}  // namespace lockstep::parallel
