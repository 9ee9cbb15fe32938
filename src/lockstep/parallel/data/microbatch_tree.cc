#include "lockstep/parallel/data/microbatch_tree.h"

#include <torch/torch.h>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

void MicrobatchTree::push(int64_t microbatch, const at::Tensor& gradient) {
  Leaves leaves{microbatch, 1};
  at::Tensor sum = gradient.clone();
  for (;;) {
    const auto [first, count] = leaves;
    const bool is_left = first / count % 2 == 0;
    const auto sibling = partial_.find({is_left ? first + count : first - count, count});
    if (sibling == partial_.end()) break;
    // Left operand first: the tree's order.
    sum = is_left ? sum.add_(sibling->second) : sibling->second.add_(sum);
    leaves = {is_left ? first : first - count, 2 * count};
    partial_.erase(sibling);
  }
  LOCKSTEP_CHECK(partial_.emplace(leaves, std::move(sum)).second, "micro-batch ", microbatch, " twice");
}

void MicrobatchTree::fold_into(const at::Tensor& output) {
  if (partial_.empty()) {
    output.zero_();
    return;
  }
  at::Tensor sum;
  for (auto node = partial_.rbegin(); node != partial_.rend(); ++node) {
    sum = sum.defined() ? node->second.add_(sum) : node->second;
  }
  output.copy_(sum);
  partial_.clear();
}

}  // namespace lockstep::parallel
