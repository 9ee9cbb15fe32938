// Who shares one copy of the states: all ranks of a group, or, hybrid, consecutive ranks of it.
//
//   6 ranks, 2 to a shard group:   shard groups   {0 1} {2 3} {4 5}    gradients are reduce-scattered, weights gathered
//                                  replicas       {0 2 4} {1 3 5}      shards of gradients are all-reduced
#pragma once

#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

class ShardGroups {
 public:
  // `all` must outlive this. shard_ranks 0: all of them.
  //   throws   InvalidArgument when shard_ranks does not divide the size of `all`
  ShardGroups(comm::ProcessGroup& all, int shard_ranks);

  comm::ProcessGroup& all() const { return all_; }
  comm::ProcessGroup& shard() const { return shard_ == nullptr ? all_ : *shard_; }
  // The ranks that own the same slice; null when no other does.
  comm::ProcessGroup* replicas() const { return replicas_.get(); }
  // Whether what this rank owns is counted here, or by another rank that owns the same.
  bool counts() const { return replicas_ == nullptr || replicas_->rank() == 0; }

 private:
  comm::ProcessGroup& all_;
  std::unique_ptr<comm::ProcessGroup> shard_, replicas_;  // null when shard groups are all of `all`
};

}  // namespace lockstep::parallel
