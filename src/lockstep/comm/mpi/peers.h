// The processes behind the ranks: which of those on this host have ended, however they did, or stand still.
//
// Ranks of other hosts are not seen; one of them that dies is noticed by ranks of its own host, which say so to their
// groups, by mpirun, or at the deadline.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/mpi/session.h"

namespace lockstep::comm::mpi {

class Peers {
 public:
  // Communicates: every rank makes its own.
  explicit Peers(const Session& session);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Whether the process of that rank has ended. For ranks of this host; a system call until it has. A signal handler
  // may call it.
  bool ended(int rank) const;
  // "(process 123) is stopped", or empty when nothing is known to be wrong.
  std::string standstill_of(int rank) const;
  int ranks_on_host() const { return ranks_on_host_; }
  // Ranks of one host have one number: that of its first rank. A host is a kernel and a network: two name spaces of one
  // machine's network are two hosts, joined by whatever link joins them.
  int host_of(int rank) const { return host_of_rank_[static_cast<size_t>(rank)]; }
  std::vector<int> ranks_of_host(int host) const;
  int hosts() const;

 private:
  struct Peer {
    int process = 0;
    int descriptor = -1;  // readable when the process has ended; -1: it is this one, or on another host
    mutable std::atomic<bool> ended{false};
  };

  const int size_;
  int ranks_on_host_ = 0;  // whose processes this one sees
  std::vector<int> host_of_rank_;
  std::unique_ptr<Peer[]> peers_;
};

}  // namespace lockstep::comm::mpi
