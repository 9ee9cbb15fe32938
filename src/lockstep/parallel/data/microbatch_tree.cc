#include "lockstep/parallel/data/microbatch_tree.h"

#include <torch/torch.h>

namespace lockstep::parallel {

void MicrobatchTree::push(const at::Tensor& gradient) {
  Partial carry{gradient.clone(), 1};
  while (!partial_.empty() && partial_.back().microbatches == carry.microbatches) {
    // Left operand first: the tree's order.
    carry = {partial_.back().sum.add_(carry.sum), carry.microbatches * 2};
    partial_.pop_back();
  }
  partial_.push_back(std::move(carry));
}

void MicrobatchTree::fold_into(const at::Tensor& output) {
  if (partial_.empty()) {
    output.zero_();
    return;
  }
  at::Tensor sum = partial_.back().sum;
  for (size_t i = partial_.size() - 1; i-- > 0;) sum = partial_[i].sum.add_(sum);
  output.copy_(sum);
  partial_.clear();
}

}  // namespace lockstep::parallel
