// The ranks that share the weights of every layer, and how activations cross the border of a split part of a layer.
//
//                       between split parts               inside of one
//   tensor parallel     the same on every rank            this rank's heads or features
//   sequence parallel   this rank's positions             all positions, this rank's heads or features
//
//                       enter               leave
//   tensor parallel     nothing             all_reduce
//   sequence parallel   all_gather          reduce_scatter
//
// The gradient crosses the other way: backward of enter is leave, and of leave it is enter (f and g of the paper).
//   source   Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022, "Reducing activation recomputation"
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::parallel {

// A tensor under way. Dropping it without wait() is safe.
class Exchange {
 public:
  explicit Exchange(std::function<at::Tensor()> finish) : finish_(std::move(finish)) {}
  // Blocks until it is there; once.
  at::Tensor wait() { return finish_(); }

 private:
  std::function<at::Tensor()> finish_;
};

struct TensorGroupOptions {
  bool sequence_parallel = false;
  int64_t sequence = 0;  // sequence_parallel: positions of every sequence; the first ranks hold one more
  bool overlap = true;   // weight gradients are computed while the input's gradient is exchanged
};

class TensorGroup {
 public:
  // `group` must outlive this.
  explicit TensorGroup(comm::ProcessGroup& group, TensorGroupOptions options = {});

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  comm::ProcessGroup& ranks() const { return group_; }
  const TensorGroupOptions& options() const { return options_; }

  // Positions of a sequence that `rank` holds between split parts.
  mesh::Range positions(int rank) const;
  mesh::Range positions() const { return positions(rank()); }

  // Sequence parallel: [B,S_r,H] of every rank -> [B,S,H]. Else `part` itself.
  at::Tensor enter(const at::Tensor& part, std::string_view tag) const;
  // The sum of every rank's `partial`, which is given up: the same shape, or with sequence parallelism
  // [B,S,H] -> [B,S_r,H].
  at::Tensor leave(const at::Tensor& partial, std::string_view tag) const;

  // The same, begun: asynchronously with options().overlap, else done.
  Exchange start_enter(const at::Tensor& part, std::string_view tag) const;
  Exchange start_leave(const at::Tensor& partial, std::string_view tag) const;

 private:
  std::vector<int64_t> counts(int64_t sequences, int64_t hidden) const;  // elements of each rank's positions
  at::Tensor packed(const at::Tensor& whole_BSH) const;                  // rank after rank, flat
  at::Tensor unpacked(const at::Tensor& flat, int64_t sequences, int64_t hidden) const;

  comm::ProcessGroup& group_;
  TensorGroupOptions options_;
};

}  // namespace lockstep::parallel
