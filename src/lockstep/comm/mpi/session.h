// MPI itself: its beginning and end, and point-to-point messages. Beside this, only native.cc includes mpi.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::comm::mpi {

// Calls and notices between ranks never match one another.
enum class Channel : uint8_t { calls, notices };

// Handles are pointers in OpenMPI and numbers in others.
template <class Handle>
void* pack(Handle handle) {
  static_assert(sizeof(Handle) <= sizeof(void*));
  void* packed = nullptr;
  std::memcpy(&packed, &handle, sizeof handle);
  return packed;
}
template <class Handle>
Handle unpack(void* packed) {
  Handle handle;
  std::memcpy(&handle, &packed, sizeof handle);
  return handle;
}

// A message or a collective of MPI under way.
struct Pending {
  void* request = nullptr;  // null: it is through
  int peer = -1;            // world rank; -1: of a collective, or from any rank
};

class Session {
 public:
  //   throws  Unsupported when MPI gives less than MPI_THREAD_MULTIPLE
  Session();
  // Ends MPI if this began it and allow_finalize() was called.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Every rank of the world has said that it ends well.
  void allow_finalize() { finalize_ = true; }

  // `data` is left alone until the message is through. At most 2^31 - 1 bytes.
  //   throws  PeerLost when MPI reports an error, here and below
  Pending send(Channel channel, int rank, int tag, const void* data, int64_t bytes) const;
  Pending receive(Channel channel, int rank, int tag, void* data, int64_t bytes) const;  // rank -1: from any
  // Whether it is through. Never waits; makes progress for all messages.
  bool test(Pending& pending) const;
  // Of a receive that will not be waited for. MPI may still write into the memory of one that has begun.
  void give_up(Pending& receive) const;
  // MPI may read or write this memory as long as the process lives.
  void keep_for_ever(std::shared_ptr<void> memory);
  // For the start, when all ranks are known to come.
  void all_gather(const void* own, void* all, int64_t bytes) const;
  //   throws  PeerLost unless MPI's code is success
  void check(int code, int peer) const;

 private:
  int rank_ = 0, size_ = 1;
  bool began_ = false, finalize_ = false;
  void* channels_[2] = {};
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace lockstep::comm::mpi
