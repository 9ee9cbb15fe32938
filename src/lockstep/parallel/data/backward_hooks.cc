#include "lockstep/parallel/data/backward_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

namespace lockstep::parallel {
namespace {

class Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Hook(std::function<void()> arrived) : arrived_(std::move(arrived)) {}
  void operator()(const at::Tensor&) override { arrived_(); }

 private:
  std::function<void()> arrived_;
};

}  // namespace

void when_gradient_arrives(const at::Tensor& parameter, std::function<void()> arrived) {
  std::unique_ptr<Hook> hook;
  if (arrived) hook = std::make_unique<Hook>(std::move(arrived));
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(hook));
}

void EndOfBackward::call(std::function<void()> ended) {
  const int graph = torch::autograd::get_current_graph_task_id();
  if (graph == graph_) return;
  graph_ = graph;
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(ended));
}

}  // namespace lockstep::parallel
