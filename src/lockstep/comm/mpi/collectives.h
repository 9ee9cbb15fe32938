// One rank's part in the collectives of one group.
//
// Every operation is exchanges: each member gives a part to, and takes one from, each other member. The first exchange
// of a call announces it; parts of up to kInlineBytes travel with that. Sums are made where their slice belongs, of all
// members' slices at once. Bytes that a rank sends, n being one whole buffer and p the size:
//   all_gather, all_to_all, scatter (root), gather   what the definition says, each part once
//   reduce_scatter    (p-1)/p n
//   all_reduce        2 (p-1)/p n: a reduce_scatter, then an all_gather; (p-1) n when that is inline
//   reduce            n at most: a reduce_scatter, then a gather
//   broadcast (root)  2 (p-1)/p n: a scatter, then an all_gather
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/mpi/transfer.h"

namespace lockstep::comm::mpi {

class Collectives {
 public:
  Collectives(const GroupView& group, Board& board);

  // `call` is valid (see validate). One thread at a time.
  void execute(const Call& call, double deadline_s, const Pace& pace);

 private:
  struct Task;  // the state of one call
  using Memory = std::shared_ptr<std::vector<char>>;

  char* sent_announcement(int member) const { return announcements_->data() + member * announcement_bytes_; }
  char* received_announcement(int member) const {
    return announcements_->data() + (group_.identity.size() + member) * announcement_bytes_;
  }
  // Memory of at least so many bytes; what it held is lost.
  static char* grown(Memory& memory, int64_t bytes);

  const GroupView group_;
  Board& board_;
  const int64_t announcement_bytes_;
  Memory announcements_;
  Memory incoming_;  // others' slices
  Memory outgoing_;  // what is not in the caller's memory
  uint64_t number_ = 0;
};

}  // namespace lockstep::comm::mpi
