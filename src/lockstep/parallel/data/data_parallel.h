// Data parallelism for any torch::nn::Module: every rank holds the whole module, computes the gradients of its part of
// the batch, and the gradients are reduced over the ranks, bucket by bucket, while backward is still running.
//
//   auto world = lockstep::init();
//   Net net;
//   lockstep::parallel::DataParallel data_parallel(*net, *world);      // all start from rank 0's weights
//   ...
//   loss.backward();                                                   // gradients are averaged when it returns
//   optimizer.step();
//
// Accumulation: all micro-batches but the last run backward under no_sync(). What counts is whether the guard lives
// while backward runs; it does not matter whether it also covers the forward pass, nor how forwards and backwards are
// interleaved. One backward outside of the guard is one reduction of everything accumulated.
//   source   Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training"
#pragma once

#include <torch/nn/module.h>

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data/backward_hooks.h"
#include "lockstep/parallel/data/buckets.h"
#include "lockstep/parallel/data/gradient_trees.h"
#include "lockstep/parallel/data/module_state.h"

namespace lockstep::parallel {

struct DataParallelOptions {
  // average: every rank's mean loss weighs the same, as users of DDP expect. sum: for losses that are already divided
  // by the global count.
  comm::Reduction reduction = comm::Reduction::average;
  // Of accumulated and reduced gradients; absent: each parameter's own. With fp32, bf16 and fp16 parameters have fp32
  // gradients: what backward gives is added to them and dropped.
  std::optional<at::ScalarType> gradient_type;
  int64_t bucket_bytes = int64_t{25} << 20;
  bool overlap = true;             // false: communicate after backward, to see what overlap brings
  bool fixed_tree = false;         // add micro-batches in a fixed tree (gradient_trees.h); no overlap
  bool finish_in_backward = true;  // false: the caller calls finish() after the last backward
  Arrivals arrivals{};             // of each parameter's gradient
};

class DataParallel {
 public:
  // `module` and `group` must outlive this. Parameters and buffers are broadcast from rank 0; of parameters registered
  // twice one is kept; those that require no gradient are only broadcast.
  //   throws   InvalidArgument when the reduction is min or max; ProtocolMismatch when the ranks' modules differ
  DataParallel(torch::nn::Module& module, comm::ProcessGroup& group, DataParallelOptions options = {});
  // The same for parameters that are already equal on all ranks (counter-based initial values): nothing is broadcast.
  DataParallel(std::vector<NamedTensor> parameters, comm::ProcessGroup& group, DataParallelOptions options = {});
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // While the returned guard lives, backward only accumulates.
  class NoSync {
   public:
    explicit NoSync(DataParallel& owner) : owner_(owner), outer_(owner.accumulate_only_) {
      owner.accumulate_only_ = true;
    }
    ~NoSync() { owner_.accumulate_only_ = outer_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& owner_;
    bool outer_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // With fixed_tree: what the next backward makes. Without this micro-batches come one after the other, each whole.
  void next_backward_is(const BackwardOf& backward) { backward_ = backward; }

  // Completes the reduction: a rank without a micro-batch contributes zeros. Called by backward itself unless
  // finish_in_backward is off or backward never ran. Also broadcasts rank 0's buffers (running statistics of a plain
  // BatchNorm are those of rank 0's samples; SyncBatchNorm's are of all).
  void finish();

  // Gradients become undefined, as optimizer.zero_grad() makes them.
  void zero_grad();

  int64_t reductions() const { return reductions_; }    // finished so far: one per step
  int64_t collectives() const { return collectives_; }  // issued so far for gradients
  size_t bucket_count() const { return buckets_.size(); }
  int64_t bucket_bytes() const;  // memory that gradients occupy on this rank

 private:
  void start(const std::vector<NamedTensor>& parameters);
  void make_buckets(std::span<const size_t> order);
  void on_gradient(size_t parameter);
  void end_of_backward();
  void gather(Bucket& bucket);
  void launch_ready();
  void launch(size_t bucket);
  comm::Work reduce(size_t bucket);
  void return_gradients(Bucket& bucket);
  void follow_ready_order();

  comm::ProcessGroup& group_;
  DataParallelOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> module_buffers_;

  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<GradientTrees> trees_;  // by bucket, with fixed_tree
  struct Place {
    size_t bucket, slot;
  };
  std::vector<Place> place_of_parameter_;

  // Of the step under way.
  bool accumulate_only_ = false;
  BackwardOf backward_;            // the next
  std::vector<bool> contributed_;  // by parameter: had a gradient in some micro-batch
  std::vector<int> awaited_;       // by parameter: arrivals still to come, in backwards that reduce
  std::vector<size_t> ready_order_;
  std::vector<size_t> missing_in_bucket_;  // gradients still to come
  size_t next_bucket_ = 0;                 // buckets are sent in order, so that ranks agree
  std::vector<comm::Work> works_;
  EndOfBackward end_of_backward_;

  std::vector<int64_t> reduced_version_;  // of each gradient after its reduction; -1: none
  bool order_followed_ = false;
  int64_t reductions_ = 0, collectives_ = 0;
  std::list<GradientHook> hooks_;
};

}  // namespace lockstep::parallel
