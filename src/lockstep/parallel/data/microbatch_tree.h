// Adds the gradients of micro-batches pairwise, in a balanced binary tree over their global index, so that 1, 2 and 4
// ranks add the same numbers in the same order and reach the same bits, in whatever order a schedule makes them: a rank
// holds whole subtrees, and process groups add over ranks in the balanced tree above them.
//
// Two nodes become one as soon as both are there. In rising or falling order one partial sum is kept per set bit of the
// number of micro-batches so far.
//   costs    floor(log2(n)) + 1 copies of the gradients, up to (n + 1) / 2 in other orders, and no reduction while
//            backward runs
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

namespace lockstep::parallel {

class MicrobatchTree {
 public:
  // Takes the gradients of a micro-batch of this rank, counted from 0, once each (flat; not kept: copied).
  void push(int64_t microbatch, const at::Tensor& gradient);

  // Writes the sum of all pushed into `output` and forgets them; zeros when none was pushed.
  void fold_into(const at::Tensor& output);

  bool empty() const { return partial_.empty(); }
  size_t kept() const { return partial_.size(); }

 private:
  using Leaves = std::pair<int64_t, int64_t>;  // first, number: those below a node
  std::map<Leaves, at::Tensor> partial_;
};

}  // namespace lockstep::parallel
