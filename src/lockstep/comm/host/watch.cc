#include "lockstep/comm/host/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/host/world.h"

namespace lockstep::comm::host {
namespace {

constexpr int kLookForJoinsEvery_ms = 20;

void note_end(const Segment& segment, int rank) {
  // Whoever leaves says so before its process ends.
  if (segment.control().ranks[rank].state.load() == RankState::running) {
    mark_ended(segment, rank, RankState::lost, "its process has ended");
  }
}

}  // namespace

Watch::Watch(std::shared_ptr<Segment> segment, int own)
    : segment_(std::move(segment)), own_(own), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_ < 0) throw Unsupported("cannot watch the other ranks: no more files can be opened (ulimit -n)");
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  const uint64_t one = 1;
  while (write(stop_, &one, sizeof one) < 0 && errno == EINTR) continue;
  thread_.join();
  close(stop_);
}

void Watch::run() const {
  std::vector<pollfd> watched{{stop_, POLLIN, 0}};
  std::vector<int> ranks{-1}, not_joined;
  for (int rank = 0; rank < segment_->world_size(); ++rank) {
    if (rank != own_) not_joined.push_back(rank);
  }
  while (true) {
    std::erase_if(not_joined, [&](int rank) {
      const int process = segment_->control().ranks[rank].process.load();
      if (process == 0) return false;
      const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
      if (descriptor < 0) {
        note_end(*segment_, rank);
        return true;
      }
      watched.push_back({descriptor, POLLIN, 0});
      ranks.push_back(rank);
      return true;
    });
    poll(watched.data(), watched.size(), not_joined.empty() ? -1 : kLookForJoinsEvery_ms);
    if (watched.front().revents != 0) break;
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].fd < 0 || watched[i].revents == 0) continue;
      note_end(*segment_, ranks[i]);
      close(watched[i].fd);
      watched[i].fd = -1;  // poll passes over it
    }
  }
  for (size_t i = 1; i < watched.size(); ++i) {
    if (watched[i].fd >= 0) close(watched[i].fd);
  }
}

}  // namespace lockstep::comm::host
