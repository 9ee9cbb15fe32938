#include "lockstep/parallel/pipeline/pipeline_schedule.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/schedule/validate.h"

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
schedule::Table complete(schedule::Table table, const comm::ProcessGroup& group) {
  if (group.size() != table.ranks) {
    throw InvalidArgument(Problem{"ranks", text(table.ranks), text("the group '", group.name(), "' has ", group.size()),
                                  text(group.size())}
                              .message());
  }
  const std::vector<Problem> problems = schedule::validate(table);
  if (!problems.empty()) throw InvalidArgument(problems.front().message());
  check_kinds(table);
  return schedule::has_communication(table) ? table : schedule::add_communication(table);
}

}  // namespace

PipelineSchedule::PipelineSchedule(schedule::Table table, std::vector<PipelineStage> stages, comm::ProcessGroup& group,
                                   PipelineOptions options)
    : options_(std::move(options)),
      executor_(complete(std::move(table), group), group, *this),
      agreement_(executor_.table(), group) {
  const schedule::Table& whole = executor_.table();
  const auto own = std::ranges::count(whole.rank_of_stage, group.rank());
  if (static_cast<int64_t>(stages.size()) != own) {
    throw InvalidArgument(Problem{text("stages of rank ", group.rank()), text(stages.size()),
                                  "the table places another number on this rank", text(own)}
                              .message());
  }
  auto next = stages.begin();
  for (int stage = 0; stage < whole.stages(); ++stage) {
    if (whole.rank_of_stage[static_cast<size_t>(stage)] != group.rank()) continue;
    if (!next->forward) throw InvalidArgument(text("stage ", stage, ": has no forward function (see stage_of)"));
    stages_[stage] = *next++;
  }
}

StepResult PipelineSchedule::step(const at::Tensor& inputs, const at::Tensor& targets, const LossFunction& loss) {
  return run(microbatches_of(inputs, table().microbatches), microbatches_of(targets, table().microbatches), loss);
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
  losses_.assign(static_cast<size_t>(table().microbatches), {});

  failed_ = true;  // until it is through
  executor_.run(announce);
  failed_ = false;

  inputs_ = {};
  StepResult result;
  if (stages_.contains(table().stages() - 1)) {
    result.microbatch_losses = std::move(losses_);
    for (int m = 0; m < table().microbatches; ++m) {
      const at::Tensor part = result.microbatch_losses[static_cast<size_t>(m)] * weight_of(m);
      result.loss = m == 0 ? part : result.loss + part;
    }
  }
  targets_ = {};
  return result;
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

at::Tensor PipelineSchedule::forward(const Action& action, const at::Tensor& input) {
  const auto& [kind, stage, microbatch, overlaps] = action;
  const at::Tensor output =
      stages_.at(stage).run(stage == 0 ? inputs_.parts[static_cast<size_t>(microbatch)].detach() : input);
  if (stage == table().stages() - 1) return loss_of(microbatch, output);
  if (!output.defined() || !output.is_floating_point()) {
    throw InvalidArgument(text("stage ", stage, " returned ",
                               output.defined() ? at::toString(output.scalar_type()) : "nothing",
                               ": the next stage needs one floating-point tensor, which has a gradient"));
  }
  return output;
}

void PipelineSchedule::backward(const Action& /*action*/, const at::Tensor& output, const at::Tensor& gradient) {
  torch::autograd::backward({output}, {gradient});
}

void PipelineSchedule::reduce_gradient(int stage) {
  if (options_.reduce_gradient) options_.reduce_gradient(stage);
}

void PipelineSchedule::optimizer_step() {
  if (options_.optimizer_step) options_.optimizer_step();
}

std::optional<at::Device> PipelineSchedule::device(int stage) const {
  return stages_.at(stage).device();
}

// check_kinds refuses tables with these.
void PipelineSchedule::weight_gradient(const Action& action) {
  LOCKSTEP_CHECK(false, to_string(action));
}
void PipelineSchedule::unshard(int stage) {
  LOCKSTEP_CHECK(false, stage);
}
void PipelineSchedule::reshard(int stage) {
  LOCKSTEP_CHECK(false, stage);
}

}  // namespace lockstep::parallel
