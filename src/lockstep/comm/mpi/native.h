// MPI's own collectives, in their nonblocking form so that a wait for one can end. Which algorithm MPI takes, and in
// which order it adds, is MPI's business: sums of floating-point numbers may differ in their last bits from the other
// algorithms', and from run to run. The minimum or maximum of a NaN and a number may be the number.
#pragma once

#include "lockstep/comm/mpi/board.h"
#include "lockstep/comm/mpi/session.h"

namespace lockstep::comm::mpi {

class NativeCollectives {
 public:
  //   tag  one of MPI's that no other group uses
  NativeCollectives(const Session& session, const GroupIdentity& group, int tag)
      : session_(session), group_(group), tag_(tag) {}

  //   throws  InvalidArgument for reductions of f16 and bf16, which MPI does not know, sums of u8, all_to_all of
  //   different counts, and for more than 2^31 - 1 elements
  static void refuse_what_mpi_cannot(const Call& call);

  // Every member has announced the call: the first time they make MPI's communicator together.
  Pending start(const Call& call);
  // When it is through: what MPI does not do itself.
  void finish(const Call& call) const;
  // What MPI may use until it is through, beside the caller's memory.
  std::shared_ptr<void> memory() const { return memory_; }

 private:
  struct Parts {
    std::vector<int> counts, offsets;
  };
  struct Memory {
    Parts sent, received;
    std::vector<char> input;  // a copy, where the output is a slice of it
  };
  Parts parts_of(const Buffer& whole, Counts counts) const;
  void make_communicator();
  // The call's input, or a copy where the output overlaps it.
  void* input_apart(const Call& call) const;

  const Session& session_;
  const GroupIdentity& group_;
  const int tag_;
  void* communicator_ = nullptr;  // MPI's until it ends: freeing one would be a collective of its own
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
};

}  // namespace lockstep::comm::mpi
