// Gradients on their way from backward to the slice that a rank owns. Per flat:
//
//   closed --first gradient arrives--> open: gradients lie, and add up, in a whole flat
//          --all have arrived (or finish)--> under way: reduce_scatter
//          --waited for--> closed; this rank's slice of the sum is added to its shard
//
// Stage 1 keeps the whole flats (4 bytes a parameter in fp32) and its shards are slices of them. Stages 2 and 3 lend
// them from a pool, so that without accumulation only the flats being filled and under way exist, and the shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/data/backward_hooks.h"
#include "lockstep/parallel/data/gradient_trees.h"
#include "lockstep/parallel/zero/buffer_pool.h"
#include "lockstep/parallel/zero/flat.h"
#include "lockstep/parallel/zero/shard_groups.h"

namespace lockstep::parallel {

class GradientShards {
 public:
  struct Options {
    bool keep_whole = false;  // stage 1
    comm::Reduction reduction = comm::Reduction::average;
    bool overlap = true;      // false: everything leaves in finish()
    bool fixed_tree = false;  // micro-batches are added in a fixed tree; everything leaves in finish()
    std::optional<at::ScalarType> gradient_type{};  // of flats and shards; absent: each parameter's own
    Arrivals arrivals{};
  };

  // All of it must outlive this. `flats` in the order in which they become ready; those not trained are left alone.
  GradientShards(std::span<const at::Tensor> parameters, std::span<const std::string> names,
                 std::span<const Flat> flats, const ShardGroups& groups, const Options& options);

  // A backward has completed parameters[parameter].grad(), which moves to its flat. With `reduce` the flat leaves once
  // all of its gradients have arrived.
  void arrived(size_t parameter, bool reduce);

  // With fixed_tree: the gradients that a backward makes are there, and go to the trees.
  void end_backward(const BackwardOf& backward);

  // Every flat leaves, gradients that this rank lacks as zeros, and is waited for.
  void finish();

  // Adds the shards of all replicas, once after the last finish() of a step.
  void add_replicas();
  // Reduces shards over a group whose ranks have the same slices.
  void add_over(comm::ProcessGroup& group, comm::Reduction reduction);

  // Forgets gradients and shards.
  void clear();

  // This rank's slice of the reduced gradient of flats[flat]; undefined before finish().
  const at::Tensor& shard(size_t flat) const { return states_[flat].shard; }

  // By parameter: had a gradient here since clear().
  const std::vector<bool>& contributed() const { return contributed_; }

  int64_t gradient_bytes() const;  // of open flats and shards
  int64_t buffer_bytes() const { return pool_.bytes(); }
  int64_t collectives() const { return collectives_; }  // reduce_scatters so far

 private:
  struct State {
    at::Tensor buffer, whole, shard;
    std::vector<at::Tensor> gradients;  // by slot, views of `whole`
    std::vector<int> awaited;           // by slot, arrivals still to come in backwards that reduce
    size_t missing = 0;
    bool sent = false;
    comm::Work work;
  };
  struct Place {
    size_t flat, slot;
  };

  at::ScalarType type_of(size_t flat) const;
  void open(size_t flat);
  void take_from_parameters(size_t flat);
  void launch(size_t flat);
  void collect_oldest();
  void close(State& state);
  at::Tensor own_slice(size_t flat) const;
  void reset(size_t flat);

  std::span<const at::Tensor> parameters_;
  std::span<const std::string> names_;
  std::span<const Flat> flats_;
  const ShardGroups& groups_;
  Options options_;
  BufferPool pool_;
  std::vector<int> arrivals_;  // by parameter
  std::vector<State> states_;
  std::vector<GradientTrees> trees_;  // by flat, with fixed_tree
  std::vector<Place> place_of_parameter_;
  std::vector<bool> contributed_;
  size_t next_ = 0;               // flats are sent in order, so that ranks agree
  std::deque<size_t> under_way_;  // oldest first
  bool finished_ = false;         // since clear()
  int64_t collectives_ = 0;
};

}  // namespace lockstep::parallel
