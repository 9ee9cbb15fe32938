#include "lockstep/parallel/pipeline/pipeline_schedule.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/schedule/validate.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::parallel {

using schedule::Action;
using Kind = schedule::Action::Kind;

namespace {

void check_kinds(const schedule::Table& table) {
  for (size_t rank = 0; rank < table.actions_by_rank.size(); ++rank) {
    for (const Action& action : table.actions_by_rank[rank]) {
      std::string rule;
      if (action.kind == Kind::input_grad || action.kind == Kind::weight_grad) {
        rule =
            "a module of one's own computes the gradients of its input and of its weights in one: use a kind with "
            "whole "
            "backwards (naive, gpipe, 1f1b, interleaved, looped_bfs)";
      } else if (action.kind == Kind::unshard || action.kind == Kind::reshard) {
        rule = "a module of one's own holds its parameters whole: use a table without sharding";
      } else {
        continue;
      }
      throw InvalidArgument(Problem{text("rank ", rank), to_string(action), rule, ""}.message());
    }
  }
}

// Checked, and with communication.
schedule::Table complete(schedule::Table table) {
  const std::vector<Problem> problems = schedule::validate(table);
  if (!problems.empty()) throw InvalidArgument(problems.front().message());
  check_kinds(table);
  return schedule::has_communication(table) ? table : schedule::add_communication(table);
}

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

PipelineSchedule::PipelineSchedule(schedule::Table table, std::vector<PipelineStage> stages, comm::ProcessGroup& group,
                                   PipelineOptions options)
    : table_(complete(std::move(table))),
      group_(group),
      options_(std::move(options)),
      messages_(table_, group),
      agreement_(table_, group) {
  if (group.size() != table_.ranks) {
    throw InvalidArgument(Problem{"ranks", text(table_.ranks),
                                  text("the group '", group.name(), "' has ", group.size()), text(group.size())}
                              .message());
  }
  const auto own = std::ranges::count(table_.rank_of_stage, group.rank());
  if (static_cast<int64_t>(stages.size()) != own) {
    throw InvalidArgument(Problem{text("stages of rank ", group.rank()), text(stages.size()),
                                  "the table places another number on this rank", text(own)}
                              .message());
  }
  auto next = stages.begin();
  for (int stage = 0; stage < table_.stages(); ++stage) {
    if (table_.rank_of_stage[static_cast<size_t>(stage)] != group.rank()) continue;
    if (!next->forward) throw InvalidArgument(text("stage ", stage, ": has no forward function (see stage_of)"));
    stages_[stage] = *next++;
  }
  const auto& actions = table_.actions_by_rank[static_cast<size_t>(group.rank())];
  recomputes_ = std::ranges::count(actions, Kind::recompute, &Action::kind) > 0;
}

double PipelineSchedule::in_flight_peak() const {
  return stages_.empty() ? 0 : static_cast<double>(most_held_) / static_cast<double>(stages_.size());
}

StepResult PipelineSchedule::step(const at::Tensor& inputs, const at::Tensor& targets, const LossFunction& loss) {
  return run(microbatches_of(inputs, table_.microbatches), microbatches_of(targets, table_.microbatches), loss);
}

StepResult PipelineSchedule::step(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets,
                                  const LossFunction& loss) {
  return run(microbatches_of(std::move(inputs)), microbatches_of(std::move(targets)), loss);
}

StepResult PipelineSchedule::run(Microbatches inputs, Microbatches targets, const LossFunction& loss) {
  if (failed_) throw Error("a step of this PipelineSchedule failed before; make a new one, on a new group");
  const bool announce = agreement_.agree(inputs, targets, options_.shapes_vary);
  announcements_ += announce;
  inputs_ = std::move(inputs);
  targets_ = std::move(targets);
  loss_ = &loss;
  most_held_ = 0;
  recorded_.clear();
  losses_.assign(static_cast<size_t>(table_.microbatches), {});

  failed_ = true;  // until it is through
  const at::AutoGradMode with_gradients(true);
  messages_.begin_step(announce);
  for (const Action& action : table_.actions_by_rank[static_cast<size_t>(group_.rank())]) {
    const std::string name = to_string(action);
    const trace::Span span(is_compute(action.kind) ? group_.recorder() : nullptr, trace::Track::compute, name, 0,
                           action.stage, action.microbatch);
    perform(action);
    recorded_.push_back(action);
  }
  messages_.finish_step();
  failed_ = false;

  inputs_ = {};
  StepResult result;
  if (stages_.contains(table_.stages() - 1)) {
    result.microbatch_losses = std::move(losses_);
    for (int m = 0; m < table_.microbatches; ++m) {
      const at::Tensor part = result.microbatch_losses[static_cast<size_t>(m)] * weight_of(m);
      result.loss = m == 0 ? part : result.loss + part;
    }
  }
  targets_ = {};
  return result;
}

void PipelineSchedule::perform(const Action& action) {
  const Key key{action.stage, action.microbatch};
  switch (action.kind) {
    case Kind::forward:
      return forward(action.stage, action.microbatch);
    case Kind::recompute:
      return recompute(action.stage, action.microbatch);
    case Kind::backward:
      return backward(action.stage, action.microbatch);
    case Kind::send_activation:
      messages_.send(action, held_.at(key).output);
      return drop_unless_graph(held_.at(key).output);
    case Kind::send_gradient:
      messages_.send(action, input_gradients_.at(key));
      input_gradients_.erase(key);
      return;
    case Kind::receive_activation:
    case Kind::receive_gradient:
      return messages_.receive(action);
    case Kind::reduce_gradient:
      if (options_.reduce_gradient) options_.reduce_gradient(action.stage);
      return;
    case Kind::optimizer_step:
      if (options_.optimizer_step) options_.optimizer_step();
      return;
    default:
      LOCKSTEP_CHECK(false, to_string(action), " is refused when the schedule is made");
  }
}

at::Tensor PipelineSchedule::input_of(int stage, int microbatch) {
  if (stage == 0) return inputs_.parts[static_cast<size_t>(microbatch)].detach();
  at::Tensor input;
  if (table_.same_rank(stage - 1, stage)) {
    at::Tensor& output = held_.at({stage - 1, microbatch}).output;
    input = output.detach();
    drop_unless_graph(output);
  } else {
    input = messages_.take({Kind::receive_activation, stage, microbatch});
  }
  // A leaf on the stage's device: its gradient is what the stage before waits for.
  const std::optional<at::Device> device = stages_.at(stage).device();
  return (device ? input.to(*device) : input).detach().requires_grad_();
}

at::Tensor PipelineSchedule::loss_of(int microbatch, const at::Tensor& output) {
  const at::Tensor target = targets_.parts[static_cast<size_t>(microbatch)].to(output.device());
  const at::Tensor loss = (*loss_)(output, target);
  if (!loss.defined() || loss.numel() != 1) {
    throw InvalidArgument(text("the loss function returned ",
                               loss.defined() ? text("[", join(loss.sizes()), "]") : "no tensor", ", not a scalar"));
  }
  losses_[static_cast<size_t>(microbatch)] = loss.detach().reshape({});
  return loss * weight_of(microbatch);
}

double PipelineSchedule::weight_of(int microbatch) const {
  if (options_.loss_is == PipelineOptions::LossIs::sum) return 1;
  int64_t elements = 0;
  for (const at::Tensor& target : targets_.parts) elements += target.numel();
  return static_cast<double>(targets_.parts[static_cast<size_t>(microbatch)].numel()) / static_cast<double>(elements);
}

at::Tensor PipelineSchedule::output_of(int stage, int microbatch, const at::Tensor& input) {
  const at::Tensor output = stages_.at(stage).run(input);
  if (stage == table_.stages() - 1) return loss_of(microbatch, output);
  if (!output.defined() || !output.is_floating_point()) {
    throw InvalidArgument(text("stage ", stage, " returned ",
                               output.defined() ? at::toString(output.scalar_type()) : "nothing",
                               ": the next stage needs one floating-point tensor, which has a gradient"));
  }
  return output;
}

void PipelineSchedule::forward(int stage, int microbatch) {
  Held& held = held_[{stage, microbatch}];
  most_held_ = std::max(most_held_, held_.size());
  held.input = input_of(stage, microbatch);
  if (recomputes_) held.generator = generator_state();
  const at::AutoGradMode mode(!recomputes_);
  held.output = output_of(stage, microbatch, held.input);
}

void PipelineSchedule::recompute(int stage, int microbatch) {
  Held& held = held_.at({stage, microbatch});
  const at::Tensor now = generator_state();
  set_generator_state(held.generator);
  held.output = output_of(stage, microbatch, held.input);
  set_generator_state(now);
}

at::Tensor PipelineSchedule::gradient_of(int stage, int microbatch) {
  if (stage == table_.stages() - 1) return {};  // the loss's own: 1
  if (!table_.same_rank(stage, stage + 1)) return messages_.take({Kind::receive_gradient, stage, microbatch});
  const auto found = input_gradients_.extract({stage + 1, microbatch});
  return found.mapped();
}

void PipelineSchedule::backward(int stage, int microbatch) {
  const at::Tensor gradient = gradient_of(stage, microbatch);
  Held& held = held_.at({stage, microbatch});
  if (held.output.defined() && held.output.requires_grad()) {  // not where nothing up to here is trained
    torch::autograd::backward({held.output}, {gradient.defined() ? gradient.to(held.output.device()) : gradient});
  }
  if (stage > 0) {
    const at::Tensor of_input = held.input.grad();
    input_gradients_[{stage, microbatch}] = of_input.defined() ? of_input : at::zeros_like(held.input);
  }
  held_.erase({stage, microbatch});
}

}  // namespace lockstep::parallel
