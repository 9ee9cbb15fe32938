#include "lockstep/comm/mpi/peers.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::comm::mpi {
namespace {

struct Introduction {
  int process = 0;
  char boot[40] = {};       // of the kernel: one host
  char processes[40] = {};  // the name space that `process` is a number of
  char network[40] = {};    // the name space of its addresses
};

Introduction introduction() {
  Introduction own{.process = getpid()};
  std::ifstream("/proc/sys/kernel/random/boot_id").getline(own.boot, sizeof own.boot);
  if (readlink("/proc/self/ns/pid", own.processes, sizeof own.processes - 1) < 0) own.processes[0] = '\0';
  if (readlink("/proc/self/ns/net", own.network, sizeof own.network - 1) < 0) own.network[0] = '\0';
  return own;
}

}  // namespace

Peers::Peers(const Session& session) : size_(session.size()), peers_(new Peer[static_cast<size_t>(session.size())]) {
  const Introduction own = introduction();
  std::vector<Introduction> all(static_cast<size_t>(size_));
  session.all_gather(&own, all.data(), sizeof own);
  for (const Introduction& each : all) {
    const auto first = std::ranges::find_if(all, [&](const Introduction& other) {
      return std::strcmp(other.boot, each.boot) == 0 && std::strcmp(other.network, each.network) == 0;
    });
    host_of_rank_.push_back(static_cast<int>(first - all.begin()));
  }
  for (int rank = 0; rank < size_; ++rank) {
    const Introduction& other = all[static_cast<size_t>(rank)];
    if (std::strcmp(other.boot, own.boot) != 0 || std::strcmp(other.processes, own.processes) != 0) continue;
    ++ranks_on_host_;
    if (rank == session.rank()) continue;
    peers_[rank].process = other.process;
    peers_[rank].descriptor = static_cast<int>(syscall(SYS_pidfd_open, other.process, 0));
    if (peers_[rank].descriptor < 0 && errno == ESRCH) peers_[rank].ended = true;
  }
}

Peers::~Peers() {
  for (int rank = 0; rank < size_; ++rank) {
    if (peers_[rank].descriptor >= 0) close(peers_[rank].descriptor);
  }
}

int Peers::hosts() const {
  return static_cast<int>(std::set<int>(host_of_rank_.begin(), host_of_rank_.end()).size());
}

std::vector<int> Peers::ranks_of_host(int host) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (host_of(rank) == host) ranks.push_back(rank);
  }
  return ranks;
}

bool Peers::ended(int rank) const {
  const Peer& peer = peers_[rank];
  if (peer.ended.load(std::memory_order_relaxed)) return true;
  if (peer.descriptor < 0) return false;
  pollfd watched{peer.descriptor, POLLIN, 0};
  if (poll(&watched, 1, 0) != 1) return false;
  peer.ended.store(true);
  return true;
}

std::string Peers::standstill_of(int rank) const {
  if (peers_[rank].process == 0) return "";
  std::ifstream stat(text("/proc/", peers_[rank].process, "/stat"));
  std::string line;
  if (!std::getline(stat, line)) return "";
  const char state = line[line.rfind(')') + 2];
  return state == 'T' || state == 't' ? text("(process ", peers_[rank].process, ") is stopped") : "";
}

}  // namespace lockstep::comm::mpi
