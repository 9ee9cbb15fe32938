#include "lockstep/parallel/data/backward_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

namespace lockstep::parallel {
namespace {

class Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::shared_ptr<const bool> is_defined, std::function<void()> arrived)
      : is_defined_(std::move(is_defined)), arrived_(std::move(arrived)) {}
  void operator()(const at::Tensor&) override {
    if (*is_defined_) arrived_();
  }

 private:
  std::shared_ptr<const bool> is_defined_;
  std::function<void()> arrived_;
};

}  // namespace

GradientHook::GradientHook(at::Tensor parameter, std::function<void()> arrived) : parameter_(std::move(parameter)) {
  const auto is_defined = std::make_shared<bool>(false);
  before_ = parameter_.register_hook([is_defined](const at::Tensor& gradient) { *is_defined = gradient.defined(); });
  torch::autograd::impl::set_post_acc_grad_hooks(parameter_, std::make_unique<Hook>(is_defined, std::move(arrived)));
}

GradientHook::~GradientHook() {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter_, nullptr);
  parameter_.remove_hook(before_);
}

std::vector<int> arrivals_of(std::span<const std::string> names, const Arrivals& arrivals) {
  std::vector<int> result(names.size(), 1);
  for (size_t i = 0; arrivals && i < names.size(); ++i) result[i] = arrivals(names[i]);
  return result;
}

void EndOfBackward::call(std::function<void()> ended) {
  const int graph = torch::autograd::get_current_graph_task_id();
  if (graph == graph_) return;
  graph_ = graph;
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(ended));
}

}  // namespace lockstep::parallel
