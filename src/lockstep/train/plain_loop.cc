#include "lockstep/train/plain_loop.h"

#include <torch/torch.h>

#include <cmath>

#include "lockstep/data/batch.h"
#include "lockstep/optim/clip.h"
#include "lockstep/train/build.h"

namespace lockstep::train {
namespace {

using Gradients = std::vector<at::Tensor>;

Gradients add(const Gradients& a, const Gradients& b) {
  Gradients sum;
  for (size_t i = 0; i < a.size(); ++i) sum.push_back(a[i] + b[i]);
  return sum;
}

Gradients add_in_order(const std::vector<Gradients>& of_microbatch) {
  Gradients sum = of_microbatch.front();
  for (size_t m = 1; m < of_microbatch.size(); ++m) sum = add(sum, of_microbatch[m]);
  return sum;
}

Gradients gradients_of(const std::vector<nn::Parameter>& parameters) {
  Gradients gradients;
  for (const nn::Parameter& parameter : parameters) gradients.push_back(parameter.tensor.grad());
  return gradients;
}

// Pairwise over [begin, begin + width), width a power of two; what lies beyond the last micro-batch is nothing.
Gradients add_in_tree(const std::vector<Gradients>& of_microbatch, size_t begin, size_t width) {
  if (width == 1) return of_microbatch[begin];
  const size_t middle = begin + width / 2;
  Gradients left = add_in_tree(of_microbatch, begin, width / 2);
  return middle < of_microbatch.size() ? add(left, add_in_tree(of_microbatch, middle, width / 2)) : left;
}

}  // namespace

RunRecord plain_loop(const spec::RunPlan& plan) {
  const data::Batches data(plan);
  const Built built = build(plan, at::kCPU);
  optim::MasterWeights master_weights = tie(built);
  const auto optimizer = optim::make_optimizer(plan.train, master_weights.masters());
  const optim::LrSchedule lr_schedule(plan.train);
  optim::LossScale loss_scale = make_loss_scale(plan.train);
  nn::LocalSeams seams(static_cast<uint64_t>(plan.train.seed));
  Gradients weights;
  for (const auto& parameter : built.model->parameter_list()) weights.push_back(parameter.tensor);

  RunRecord record;
  int64_t updates = 0;
  for (int64_t step = 0; step < plan.train.steps; ++step) {
    std::vector<data::Batch> batches;
    int64_t valid_tokens = 0;
    for (int64_t m = 0; m < plan.train.global_batch / plan.train.microbatch; ++m) {
      batches.push_back(data.train(step, m));
      valid_tokens += nn::count_valid(batches.back().targets_BS);
    }

    StepRecord& current = record.steps.emplace_back();
    std::vector<Gradients> of_microbatch;
    for (size_t m = 0; m < batches.size(); ++m) {
      const nn::Context context{seams.seams(),
                                {static_cast<int>(m), step, static_cast<int64_t>(m) * plan.train.microbatch}};
      const at::Tensor loss =
          built.model->loss_sum(batches[m].tokens_BS, batches[m].targets_BS, context) / valid_tokens;
      current.loss += loss.item<double>();
      Gradients& gradients = of_microbatch.emplace_back(torch::autograd::grad({loss * loss_scale.value()}, weights));
      for (at::Tensor& gradient : gradients)  // laid out as its weight: sums over it have one order
        gradient = gradient.to(gradient_type(plan.train)).contiguous();
    }
    size_t width = 1;
    while (width < of_microbatch.size()) width *= 2;
    const bool tree = plan.parallel.reduction == spec::Reduction::fixed_tree;
    const Gradients sum = tree ? add_in_tree(of_microbatch, 0, width) : add_in_order(of_microbatch);
    for (size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = sum[i];
    master_weights.take_gradients();

    const Gradients of_masters = gradients_of(built.masters);
    optim::scale(of_masters, 1 / loss_scale.value());
    current.gradients = copy_gradients(built.masters);
    current.grad_norm = std::sqrt(tree ? optim::order_free_squared_norm(of_masters) : optim::squared_norm(of_masters));
    optim::scale(of_masters, optim::clip_scale(current.grad_norm, plan.train.clip_norm));
    loss_scale.update(std::isfinite(current.grad_norm));
    if (!std::isfinite(current.grad_norm)) continue;
    optimizer->step(lr_schedule.at(updates++));
    master_weights.publish();
  }
  record.parameters = copy_weights(built.masters);
  record.state = copy_state(*optimizer);
  return record;
}

}  // namespace lockstep::train
