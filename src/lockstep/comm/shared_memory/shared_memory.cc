#include "lockstep/comm/shared_memory/shared_memory.h"

#include <unistd.h>

#include "lockstep/comm/host/host_group.h"

namespace lockstep::comm {

SharedMemoryWorld::SharedMemoryWorld(const Options& options)
    : segment_(host::Segment::create(
          {.ranks = options.ranks, .across_processes = true, .default_deadline = options.deadline})) {}

int SharedMemoryWorld::descriptor() const {
  return segment_->descriptor();
}

void SharedMemoryWorld::mark_left(int rank) {
  host::mark_ended(*segment_, rank, host::RankState::left, "");
}

void SharedMemoryWorld::mark_lost(int rank, std::string_view reason) {
  host::mark_ended(*segment_, rank, host::RankState::lost, reason);
}

JoinedWorld join_shared_memory_world(int descriptor, int rank, bool watch) {
  const std::shared_ptr<host::Segment> segment = host::Segment::map(descriptor);
  if (rank < 0 || rank >= segment->world_size()) {
    throw InvalidArgument(text("rank = ", rank, ": the world has ", segment->world_size(), " ranks"));
  }
  int32_t nobody = 0;
  if (!segment->control().ranks[rank].process.compare_exchange_strong(nobody, getpid())) {
    throw InvalidArgument(text("rank ", rank, " has joined its world already, in process ", nobody,
                               "; a rank joins once, and programs that it starts do not"));
  }
  auto self =
      std::make_shared<host::Rank>(segment, rank, std::make_shared<host::Arena>(segment, rank), "shared_memory");
  if (watch) self->watch = std::make_unique<host::Watch>(segment, rank);
  return {host::HostGroup::world(std::move(self)), segment->control().launcher};
}

}  // namespace lockstep::comm
