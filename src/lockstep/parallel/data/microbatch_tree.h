// Adds the gradients of micro-batches pairwise, in a balanced binary tree over their global index, so that 1, 2 and 4
// ranks add the same numbers in the same order and reach the same bits: a rank holds whole subtrees, and process groups
// add over ranks in the balanced tree above them.
//
// Works like a binary counter: after n micro-batches one partial sum is kept per set bit of n.
//   costs    floor(log2(n)) + 1 copies of the gradients, and no reduction while backward runs
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::parallel {

class MicrobatchTree {
 public:
  // Takes the next micro-batch's gradients (flat; not kept: copied).
  void push(const at::Tensor& gradient);

  // Writes the sum of all pushed into `output` and forgets them; zeros when none was pushed.
  void fold_into(const at::Tensor& output);

  size_t kept() const { return partial_.size(); }

 private:
  struct Partial {
    at::Tensor sum;
    int64_t microbatches;
  };
  std::vector<Partial> partial_;  // microbatches strictly falling
};

}  // namespace lockstep::parallel
