#include "lockstep/optim/master_weights.h"

#include <torch/torch.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {

MasterWeights::MasterWeights(std::vector<Parameter> masters, std::vector<at::Tensor> model)
    : masters_(std::move(masters)), model_(std::move(model)) {
  LOCKSTEP_CHECK(masters_.size() == model_.size(), masters_.size(), " masters of ", model_.size(), " weights");
  for (size_t i = 0; i < masters_.size(); ++i) {
    LOCKSTEP_CHECK(masters_[i].tensor.sizes() == model_[i].sizes(), "master of ", masters_[i].name);
  }
  publish();
}

void MasterWeights::take_gradients() {
  for (size_t i = 0; i < masters_.size(); ++i) {
    const at::Tensor& gradient = model_[i].grad();
    at::Tensor& master = masters_[i].tensor;
    if (!master.is_same(model_[i])) {
      master.mutable_grad() = gradient.defined() ? gradient.to(master.scalar_type()) : gradient;
    }
  }
}

void MasterWeights::drop_gradients() {
  for (size_t i = 0; i < masters_.size(); ++i) {
    if (!masters_[i].tensor.is_same(model_[i])) masters_[i].tensor.mutable_grad().reset();
  }
}

void MasterWeights::publish() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < masters_.size(); ++i) {
    if (!masters_[i].tensor.is_same(model_[i])) model_[i].copy_(masters_[i].tensor);
  }
}

}  // namespace lockstep::optim
