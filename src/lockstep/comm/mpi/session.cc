#include "lockstep/comm/mpi/session.h"

#include <mpi.h>

#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::comm::mpi {
namespace {

int length(int64_t bytes) {
  LOCKSTEP_CHECK(bytes >= 0 && bytes <= std::numeric_limits<int>::max(), "a message of ", bytes, " bytes");
  return static_cast<int>(bytes);
}

}  // namespace

Session::Session() {
  int initialized = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    began_ = true;
  }
  if (level < MPI_THREAD_MULTIPLE) {
    throw Unsupported(
        "backend mpi needs MPI_THREAD_MULTIPLE, but MPI gives less; let lockstep initialise MPI, or call "
        "MPI_Init_thread with that level, and use an MPI that was built for it");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  for (void*& channel : channels_) {
    MPI_Comm own = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &own);
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    channel = pack(own);
  }
}

Session::~Session() {
  if (!began_ || !finalize_) return;
  for (void* const channel : channels_) {
    auto own = unpack<MPI_Comm>(channel);
    MPI_Comm_free(&own);
  }
  MPI_Finalize();
}

Pending Session::send(Channel channel, int rank, int tag, const void* data, int64_t bytes) const {
  MPI_Request request = MPI_REQUEST_NULL;
  const auto own = unpack<MPI_Comm>(channels_[static_cast<int>(channel)]);
  check(MPI_Isend(data, length(bytes), MPI_BYTE, rank, tag, own, &request), rank);
  return {pack(request), rank};
}

Pending Session::receive(Channel channel, int rank, int tag, void* data, int64_t bytes) const {
  MPI_Request request = MPI_REQUEST_NULL;
  const auto own = unpack<MPI_Comm>(channels_[static_cast<int>(channel)]);
  const int source = rank < 0 ? MPI_ANY_SOURCE : rank;
  check(MPI_Irecv(data, length(bytes), MPI_BYTE, source, tag, own, &request), rank);
  return {pack(request), rank};
}

bool Session::test(Pending& pending) const {
  if (pending.request == nullptr) return true;
  auto request = unpack<MPI_Request>(pending.request);
  int through = 0;
  const int code = MPI_Test(&request, &through, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS || through != 0) pending.request = nullptr;
  check(code, pending.peer);
  return through != 0;
}

void Session::give_up(Pending& receive) const {
  if (receive.request == nullptr) return;
  auto request = unpack<MPI_Request>(receive.request);
  MPI_Cancel(&request);
  MPI_Request_free(&request);
  receive.request = nullptr;
}

void Session::keep_for_ever(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

void Session::all_gather(const void* own, void* all, int64_t bytes) const {
  MPI_Allgather(own, length(bytes), MPI_BYTE, all, length(bytes), MPI_BYTE, unpack<MPI_Comm>(channels_[0]));
}

void Session::check(int code, int peer) const {
  if (code == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int letters = 0;
  MPI_Error_string(code, words, &letters);
  throw PeerLost(text("rank ", rank_, ": a message with ", peer < 0 ? text("another rank") : text("rank ", peer),
                      " failed: ", words, "; start the job again, from its last checkpoint if there is one"));
}

}  // namespace lockstep::comm::mpi
