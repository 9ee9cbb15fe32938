#include "lockstep/parallel/data/gradient_trees.h"

#include <torch/torch.h>

namespace lockstep::parallel {

void GradientTrees::push(const BackwardOf& backward, const at::Tensor& bucket) {
  const HalfKey key{backward.part, backward.microbatch};
  if (backward.half == BackwardOf::Half::first) {
    first_halves_[key] = bucket.clone();
    return;
  }
  if (backward.half == BackwardOf::Half::second) {
    if (const auto first = first_halves_.extract(key)) bucket.add_(first.mapped());
  }
  trees_[backward.part].push(backward.microbatch, bucket);
}

comm::Work GradientTrees::reduce(const at::Tensor& bucket, const at::Tensor& reduced,
                                 const std::function<comm::Work()>& reduce) {
  // Those whose second half brought nothing to this bucket.
  for (const auto& [key, half] : first_halves_) trees_[key.first].push(key.second, half);
  first_halves_.clear();
  if (trees_.empty()) trees_[0];
  auto parts = std::exchange(trees_, {});
  comm::Work work;
  at::Tensor sum;
  for (auto& [part, tree] : parts) {
    tree.fold_into(bucket);
    work = reduce();
    if (parts.size() == 1) return work;
    work.wait();
    sum = sum.defined() ? sum.add_(reduced) : reduced.clone();
  }
  reduced.copy_(sum);
  return {};
}

}  // namespace lockstep::parallel
