// Data parallelism whose ranks share the training states instead of each holding all of them (ZeRO; PyTorch: FSDP).
// With P parameters in fp32 on p ranks, AdamW, each rank holds
//
//   stage 1   the optimizer's state in shards                 8P + 8P/p bytes
//   stage 2   and the gradients                               4P + 12P/p, and flats under way
//   stage 3   and the parameters, gathered unit by unit       16P/p, and at most two units
//
// Weights of bf16 and fp16 have fp32 masters, in shards from stage 1 on: with gradients of the weights' type 4P +
// 12P/p, 2P + 14P/p and 16P/p bytes, with gradients in fp32 6P + 12P/p, 2P + 16P/p and 18P/p.
//
// A rank sends 2P (p-1)/p elements a step in stages 1 and 2, as without sharding, and 3P (p-1)/p in stage 3
// (docs/zero.md).
//
//   torch::nn::Sequential net(...);                                       // its children are the units of stage 3
//   lockstep::parallel::ShardedDataParallel sharded(*net, *world, make_optimizer);
//   ...
//   sharded.zero_grad();
//   loss_of(sharded.forward(x)).backward();                                // gradients are averaged when it returns
//   sharded.clip(1.0);
//   sharded.step(lr);
//
// After a backward a parameter's grad() is undefined: what is left of it are the ranks' shards. Accumulation is as of
// DataParallel (no_sync()); where micro-batches may leave one by one (stages 2 and 3), leave the guard away: each
// backward then reduces, and only shards are kept in between.
//   source   Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models"
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data/backward_hooks.h"
#include "lockstep/parallel/data/module_state.h"
#include "lockstep/parallel/zero/gathered_weights.h"
#include "lockstep/parallel/zero/gradient_shards.h"
#include "lockstep/parallel/zero/master_shards.h"
#include "lockstep/parallel/zero/units.h"
#include "lockstep/parallel/zero/whole_weights.h"

namespace lockstep::parallel {

struct ShardedDataParallelOptions {
  int stage = 3;
  int shard_ranks = 0;  // hybrid: consecutive ranks that share one copy of the states; 0: all
  comm::Reduction reduction = comm::Reduction::average;  // or sum
  // Of accumulated and reduced gradients; absent: each parameter's own. With fp32, bf16 and fp16 parameters have fp32
  // gradients, as of DataParallel.
  std::optional<at::ScalarType> gradient_type{};
  bool master_weights = true;                // the optimizer updates fp32 masters of bf16 and fp16 parameters
  int64_t bucket_bytes = int64_t{25} << 20;  // stages 1 and 2; of weights
  bool overlap = true;                       // false: gather when used, reduce after backward
  bool fixed_tree = false;         // add micro-batches in a fixed tree (gradient_trees.h); no overlap of gradients
  bool keep_gathered = false;      // stage 3: a unit is gathered once a step and stays until its end
  bool finish_in_backward = true;  // false: the caller calls finish() after the last backward
  Arrivals arrivals{};             // of each parameter's gradient
  std::vector<std::string> units;  // stage 3 of a module that is no Sequential: its blocks by name ("layers.0")
  // Whether weight decay applies to a module's parameter; absent: to all.
  std::function<bool(const std::string& name, const at::Tensor& parameter)> decay;
  // Which of a rank's parameters count in the norm, where ranks of other groups hold the same; absent: all.
  std::function<bool(const std::string& name)> counted_in_norm;
  // Gives trained parameters their values, instead of those that they have: into `values`, of the parameter's sizes,
  // fp32 where it has masters. One parameter's exist at a time. Parameters may be without memory.
  std::function<void(const std::string& name, const at::Tensor& values)> fill;
};

// A parameter without memory: its sizes alone, until it is filled and, in stage 3, gathered.
at::Tensor without_memory(at::IntArrayRef sizes, at::TensorOptions options);

class ShardedDataParallel {
 public:
  using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<optim::Parameter>)>;

  // `module` and `group` must outlive this. Parameters and buffers begin as rank 0's. The optimizer is made for this
  // rank's pieces of parameters, each with its parameter's name; there may be none.
  //   throws   InvalidArgument for a stage, shard_ranks, reduction or unit that cannot be; ProtocolMismatch when the
  //            ranks' modules differ
  ShardedDataParallel(torch::nn::Module& module, comm::ProcessGroup& group, const MakeOptimizer& make_optimizer,
                      ShardedDataParallelOptions options = {});
  // The same for parameters that are already equal on all ranks.
  ShardedDataParallel(const std::vector<ShardedUnit>& units, comm::ProcessGroup& group,
                      const MakeOptimizer& make_optimizer, ShardedDataParallelOptions options = {});
  ShardedDataParallel(const ShardedDataParallel&) = delete;
  ShardedDataParallel& operator=(const ShardedDataParallel&) = delete;

  // -- forward and backward ----------------------------------------------------------------------------------------

  struct UseOptions {
    bool keep = false;                   // backward begins with this unit: do not free it in between
    bool parameters_in_backward = true;  // false: its backward reads no parameter, as an embedding's
  };
  // forward(input) with the unit's parameters whole, now and when its backward runs. Stages 1 and 2: just forward.
  // The unit's parameters may be read in `forward` alone. Ranks run units in the same order, equally often, forward and
  // backward: a rank that does not need what a unit gives adds it times zero.
  //   throws   InvalidArgument for a unit that there is not
  at::Tensor run(const std::string& unit, const at::Tensor& input,
                 const std::function<at::Tensor(const at::Tensor&)>& forward, UseOptions options);
  at::Tensor run(const std::string& unit, const at::Tensor& input,
                 const std::function<at::Tensor(const at::Tensor&)>& forward) {
    return run(unit, input, forward, UseOptions());
  }
  // Stage 3: starts to gather all units, which stay whole, whatever is run, until reshard() or the step.
  void unshard();
  void reshard();
  // All children of the Sequential in turn, each a unit.
  at::Tensor forward(const at::Tensor& input);

  // While the returned guard lives, backward only accumulates: whole gradients, on every rank.
  class NoSync {
   public:
    explicit NoSync(ShardedDataParallel& owner) : owner_(owner), outer_(owner.accumulate_only_) {
      owner.accumulate_only_ = true;
    }
    ~NoSync() { owner_.accumulate_only_ = outer_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    ShardedDataParallel& owner_;
    bool outer_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // With fixed_tree: what the next backward makes. Without this micro-batches come one after the other, each whole.
  void next_backward_is(const BackwardOf& backward) { backward_ = backward; }

  // Completes the reduction; a rank without a micro-batch contributes zeros. Called by backward itself unless
  // finish_in_backward is off or backward never ran.
  void finish();

  // -- after the last backward of a step; every rank calls them in the same order ----------------------------------

  // Adds the shards of ranks that hold the same slices for another part of the model; before anything below.
  void add_gradients_over(comm::ProcessGroup& holders);
  // Before the norm, where the loss was multiplied by something: multiplies the gradient, in the masters' type, by
  // `factor`, its inverse.
  void unscale(double factor);
  // Of the whole gradient: every element counts once. Not finite on all ranks when it is on one.
  double grad_norm();
  // What of it this rank counts: over all ranks each element once.
  std::vector<at::Tensor> counted_gradient();
  double squared_norm();
  // Multiplies the gradient by `factor`.
  void scale_gradient(double factor);
  // Both: holds the norm at max_norm (optim::clip_scale) and returns what it was.
  double clip(double max_norm);
  // Updates the shards and, in stages 1 and 2, gives every rank all of the new weights. A parameter that no rank used
  // keeps its value and its state. Broadcasts rank 0's buffers. Stages 1 and 2: parameters that were written into since
  // the last step (by every rank alike) are what is updated.
  void step(double lr);
  void zero_grad();

  // The first parameter whose gradient is not finite on some rank; empty when all are.
  std::string first_not_finite();

  // -- whole tensors, by parameter; collective ---------------------------------------------------------------------

  // On every rank, or on the rank of its shard group alone: the others get none. Masters where there are some.
  std::vector<NamedTensor> parameters(std::optional<int> only_on = {});
  std::vector<NamedTensor> gradients();  // before step(), in the masters' type; of an unused parameter zeros
  std::vector<NamedTensor> state();      // "name/exp_avg", in the optimizer's order; a number per parameter: [ ]

  // -- what it costs -----------------------------------------------------------------------------------------------

  int64_t gradient_bytes() const {
    return gradients_->gradient_bytes();
  }  // now: whole ones not yet reduced, and shards
  int64_t buffer_bytes() const;    // lent for gathered units and for gradients under way, used or not
  int64_t owned_elements() const;  // parameters that this rank updates
  int64_t reductions() const { return gradients_->collectives(); }
  const GatheredWeights* gathered() const { return gathered_.get(); }  // null but in stage 3

 private:
  void start(const MakeOptimizer& make_optimizer);
  void make_flats();
  void make_pieces(const MakeOptimizer& make_optimizer);
  void on_gradient(size_t parameter);
  void set_values(size_t parameter, const at::Tensor& home);
  void take_gradients();
  void scale_owned(double factor);
  void drop_owned_gradients();
  void agree();
  std::vector<at::Tensor> counted_pieces() const;
  void end_of_backward();
  // What this rank owns of a flat: its weights, and what the optimizer updates, which may be their masters.
  const at::Tensor& slice(size_t flat) const;
  const at::Tensor& trained(size_t flat) const;

  // Whole tensors by parameter, of what each rank puts into its slices; undefined for parameters in no flat, and for
  // ranks that are to get none. Without a type of what is trained.
  using FillSlice = std::function<void(size_t flat, at::Tensor& slice)>;
  std::vector<at::Tensor> whole(std::optional<at::ScalarType> type, const FillSlice& fill,
                                std::optional<int> only_on = {});

  ShardGroups groups_;
  ShardedDataParallelOptions options_;
  torch::nn::Module* module_ = nullptr;  // when made from one
  std::vector<at::Tensor> module_buffers_;

  UnitList units_;
  std::vector<size_t> unit_of_parameter_;  // stage 3
  std::vector<Flat> flats_;                // in the order in which backward completes them

  std::unique_ptr<MasterShards> masters_;
  std::unique_ptr<WholeWeights> whole_weights_;
  std::unique_ptr<GatheredWeights> gathered_;
  std::unique_ptr<GradientShards> gradients_;

  struct OwnedPiece {
    size_t flat;
    Piece piece;
    at::Tensor tensor;  // [count], part of what is trained; grad() is set before each update
  };
  std::vector<OwnedPiece> owned_;          // as the optimizer has them
  std::vector<optim::State> state_kinds_;  // what the optimizer keeps for a parameter of one element
  std::unique_ptr<optim::Optimizer> optimizer_;

  // Of the step under way.
  bool accumulate_only_ = false;
  BackwardOf backward_;  // the next
  EndOfBackward end_of_backward_;
  struct UnitUse {
    size_t gradients = 0;   // that a backward brings
    size_t missing = 0;     // of which are still to come
    bool releases = false;  // backward passes no input on which it would show that the unit is done
  };
  std::vector<UnitUse> uses_;
  enum class Gradient { reduced, taken, agreed, used } gradient_ = Gradient::reduced;  // how far the step is with it
  std::vector<bool> used_;  // by parameter: some rank had a gradient
  double squared_norm_ = 0;
  std::list<GradientHook> hooks_;
};

}  // namespace lockstep::parallel
