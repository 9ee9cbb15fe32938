// Memory of one rank inside the segment, which the other ranks reach without a copy.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "lockstep/comm/host/segment.h"

namespace lockstep::comm::host {

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(std::shared_ptr<Segment> segment, int rank);

  // Zeroed whole pages, touched, so that no collective pays for their first use.
  //   throws  InvalidArgument when the host cannot give so much
  Registered allocate(int64_t bytes);

 private:
  void release(int64_t offset, int64_t bytes);

  const std::shared_ptr<Segment> segment_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes; neighbours are merged
};

// Refuses what the host has no memory for, before it is touched.
void check_memory(int64_t bytes);

}  // namespace lockstep::comm::host
