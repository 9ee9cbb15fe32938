// Notices that the process of another rank ends, where no launcher of ours does: a thread that sleeps on all of them.
#pragma once

#include <memory>
#include <thread>

#include "lockstep/comm/host/segment.h"

namespace lockstep::comm::host {

class Watch {
 public:
  // Of all ranks but `own`, from when each has joined. A rank that ends without having left is marked lost.
  Watch(std::shared_ptr<Segment> segment, int own);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run() const;

  const std::shared_ptr<Segment> segment_;
  const int own_;
  int stop_ = -1;  // an eventfd
  std::thread thread_;
};

}  // namespace lockstep::comm::host
