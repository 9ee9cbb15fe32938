#include "lockstep/parallel/pipeline/executor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::parallel {

using schedule::Action;
using Kind = schedule::Action::Kind;

namespace {

// An output that was passed on is kept for its graph alone.
void drop_unless_graph(at::Tensor& output) {
  if (!output.requires_grad()) output.reset();
}

at::Generator default_generator() {
  return at::globalContext().defaultGenerator(at::kCPU);
}

at::Tensor generator_state() {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

Executor::Executor(schedule::Table table, comm::ProcessGroup& group, StageWork& work)
    : table_(std::move(table)),
      group_(group),
      work_(work),
      messages_(table_, group),
      recomputes_(std::ranges::count(actions(), Kind::recompute, &Action::kind) > 0),
      own_stages_(static_cast<size_t>(std::ranges::count(table_.rank_of_stage, group.rank()))) {}

const std::vector<Action>& Executor::actions() const {
  return table_.actions_by_rank[static_cast<size_t>(group_.rank())];
}

double Executor::in_flight_peak() const {
  return own_stages_ == 0 ? 0 : static_cast<double>(most_alive_) / static_cast<double>(own_stages_);
}

void Executor::run(bool announce, bool with_gradients) {
  with_gradients_ = with_gradients;
  recorded_.clear();
  awaiting_weights_ = most_alive_ = 0;
  waited_s_ = 0;
  const at::AutoGradMode mode(with_gradients);
  messages_.begin_step(announce);
  for (const Action& action : actions()) perform(action);
  messages_.finish_step();
  held_.clear();
  LOCKSTEP_CHECK(recorded_ == actions(), "rank ", group_.rank(), " did not do what its list says");
}

// A new kind of action is a new case here and nowhere else in training.
void Executor::perform(const Action& action) {
  const Key key{action.stage, action.microbatch};
  switch (action.kind) {
    case Kind::forward:
      return forward(action);
    case Kind::recompute:
      return recompute(action);
    case Kind::backward:
    case Kind::input_grad:
      return backward(action);
    case Kind::weight_grad:
      --awaiting_weights_;
      return compute(action, [&] { work_.weight_gradient(action); });
    case Kind::send_activation:
      messages_.send(action, held_.at(key).output);
      drop_unless_graph(held_.at(key).output);
      break;
    case Kind::send_gradient:
      messages_.send(action, input_gradients_.at(key));
      input_gradients_.erase(key);
      break;
    case Kind::receive_activation:
    case Kind::receive_gradient:
      messages_.receive(action);
      break;
    case Kind::unshard:
      work_.unshard(action.stage);
      break;
    case Kind::reshard:
      work_.reshard(action.stage);
      break;
    case Kind::reduce_gradient:
      return compute(action, [&] { work_.reduce_gradient(action.stage); });
    case Kind::optimizer_step:
      work_.before_optimizer_step();
      return compute(action, [&] { work_.optimizer_step(); });
  }
  recorded_.push_back(action);
}

void Executor::compute(const Action& action, const std::function<void()>& work) {
  // What is recorded are steps of training.
  const trace::Span span(with_gradients_ ? group_.recorder() : nullptr, trace::Track::compute,
                         schedule::name(action.kind), 0, action.stage, action.microbatch);
  work();
  recorded_.push_back(action);
}

at::Tensor Executor::take(const Action& receive) {
  const double start_s = now_s();
  const at::Tensor tensor = messages_.take(receive);
  waited_s_ += now_s() - start_s;
  return tensor;
}

at::Tensor Executor::to_device(const at::Tensor& tensor, int stage) const {
  const std::optional<at::Device> device = work_.device(stage);
  return device ? tensor.to(*device) : tensor;
}

at::Tensor Executor::input_of(int stage, int microbatch) {
  if (stage == 0) return {};
  at::Tensor input;
  if (table_.same_rank(stage - 1, stage)) {
    at::Tensor& output = held_.at({stage - 1, microbatch}).output;
    input = output.detach();
    drop_unless_graph(output);
  } else {
    input = take({Kind::receive_activation, stage, microbatch});
  }
  // A leaf on the stage's device: its gradient is what the stage before waits for.
  return to_device(input, stage).detach().requires_grad_(with_gradients_);
}

void Executor::forward(const Action& action) {
  Held& held = held_[{action.stage, action.microbatch}];
  most_alive_ = std::max(most_alive_, held_.size() + awaiting_weights_);
  held.input = input_of(action.stage, action.microbatch);
  if (recomputes_) held.generator = generator_state();
  const at::AutoGradMode mode(with_gradients_ && !recomputes_);
  compute(action, [&] { held.output = work_.forward(action, held.input); });
  if (!with_gradients_) held.input.reset();
}

void Executor::recompute(const Action& action) {
  Held& held = held_.at({action.stage, action.microbatch});
  const at::Tensor now = generator_state();
  set_generator_state(held.generator);
  compute(action, [&] { held.output = work_.forward(action, held.input); });
  set_generator_state(now);
}

at::Tensor Executor::gradient_of(int stage, int microbatch) {
  if (stage == table_.stages() - 1) return {};  // the loss's own: 1
  if (!table_.same_rank(stage, stage + 1)) return take({Kind::receive_gradient, stage, microbatch});
  return input_gradients_.extract({stage + 1, microbatch}).mapped();
}

void Executor::backward(const Action& action) {
  const auto& [kind, stage, microbatch, overlaps] = action;
  at::Tensor gradient = gradient_of(stage, microbatch);
  Held& held = held_.at({stage, microbatch});
  if (gradient.defined()) gradient = to_device(gradient, stage);
  compute(action, [&] {
    // Not where nothing up to here is trained.
    if (held.output.defined() && held.output.requires_grad()) work_.backward(action, held.output, gradient);
  });
  if (stage > 0) {
    const at::Tensor of_input = held.input.grad();
    input_gradients_[{stage, microbatch}] = of_input.defined() ? of_input : at::zeros_like(held.input);
  }
  held_.erase({stage, microbatch});
  if (kind == Kind::input_grad) ++awaiting_weights_;
}

}  // namespace lockstep::parallel
