#include "lockstep/parallel/zero/shard_groups.h"

#include <vector>

namespace lockstep::parallel {

ShardGroups::ShardGroups(comm::ProcessGroup& all, int shard_ranks) : all_(all) {
  const int size = all.size();
  if (shard_ranks == 0 || shard_ranks == size) return;
  if (shard_ranks < 0 || size % shard_ranks != 0) {
    throw InvalidArgument(text("shard_ranks = ", shard_ranks, ": must divide the ", size, " ranks of group '",
                               all.name(), "', or be 0 for all of them (nearest: 0)"));
  }
  std::vector<int> same_copy, same_slice;
  for (int rank = 0; rank < size; ++rank) {
    if (rank / shard_ranks == all.rank() / shard_ranks) same_copy.push_back(rank);
    if (rank % shard_ranks == all.rank() % shard_ranks) same_slice.push_back(rank);
  }
  shard_ = all.split(same_copy, all.name() + " shards");
  replicas_ = all.split(same_slice, all.name() + " replicas");
}

}  // namespace lockstep::parallel
