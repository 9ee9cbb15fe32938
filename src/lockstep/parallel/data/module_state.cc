#include "lockstep/parallel/data/module_state.h"

#include <torch/torch.h>

#include <map>
#include <unordered_set>

#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {

std::vector<NamedTensor> broadcast_parameters(const torch::nn::Module& module, comm::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::vector<NamedTensor> parameters;
  std::unordered_set<at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    at::Tensor parameter = item.value();
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    at::Tensor values = parameter.detach().contiguous();
    lockstep::broadcast(values, 0, group, {.tag = item.key()});
    parameter.copy_(values);
    parameters.push_back({item.key(), parameter});
  }
  return parameters;
}

void broadcast_tensors(const std::vector<at::Tensor>& tensors, comm::ProcessGroup& group) {
  if (group.size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& tensor : tensors) by_type[tensor.scalar_type()].push_back(tensor);
  for (auto& [type, of_type] : by_type) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : of_type) flat.push_back(tensor.reshape({-1}));
    const at::Tensor packed = at::cat(flat);
    at::Tensor bytes = packed.view(at::kByte);  // any type travels, masks of bool as well
    lockstep::broadcast(bytes, 0, group, {.tag = "buffers"});
    int64_t offset = 0;
    for (at::Tensor& tensor : of_type) {
      tensor.copy_(packed.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

}  // namespace lockstep::parallel
