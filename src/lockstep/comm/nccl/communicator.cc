#include "lockstep/comm/nccl/communicator.h"

#include <unistd.h>

#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::comm::nccl {
namespace {

constexpr double kStartup_s = 60;  // that NCCL may take to connect ranks that are all there
constexpr double kGoodbye_s = 10;  // that it may take to end what is under way
constexpr double kSpinning_s = 1e-3;
constexpr int kPause_us = 100;

}  // namespace

void raise_nccl(ncclResult_t result, ncclComm_t comm, std::string_view during) {
  const char* const last = ncclGetLastError(comm);
  const std::string message = text("NCCL: ", ncclGetErrorString(result), " during ", during,
                                   last != nullptr && *last != '\0' ? text(" (", last, ")") : "");
  if (result == ncclRemoteError)
    throw PeerLost(text(message, "; another rank of the group has ended or lost its link"));
  throw Error(message);
}

Communicator::Communicator(ProcessGroup& side, Options options)
    : options_(std::move(options)), stream_(options_.device) {
  try {
    meet(side);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  if (!finish()) abort();
}

void Communicator::meet(ProcessGroup& side) {
  const CurrentDevice current(options_.device);
  const std::string during = text("the meeting of group '", options_.name, "'");
  ncclUniqueId id{};
  if (side.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) raise_nccl(result, nullptr, during);
  }
  side.broadcast(
      {.data = id.internal, .count = NCCL_UNIQUE_ID_BYTES, .type = DataType::u8}, 0,
      {.deadline = std::chrono::milliseconds(static_cast<int64_t>(options_.deadline_s * 1e3)), .tag = "NCCL id"});
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = options_.name.c_str();
  settle(ncclCommInitRankConfig(&comm_, side.size(), id, side.rank(), &config), options_.deadline_s + kStartup_s,
         during);
}

void Communicator::settle(ncclResult_t result, double deadline_s, std::string_view during) {
  const double start_s = now_s();
  while (result == ncclInProgress) {
    if (aborted_.load()) throw Error(text("the communicator was aborted during ", during));
    options_.look();
    const double waited_s = now_s() - start_s;
    if (waited_s > deadline_s) {
      throw DeadlineExceeded(text("waited ", waited_s, " s for NCCL in ", during,
                                  "; see whether every rank makes this call, or allow a longer deadline"));
    }
    waited_s < kSpinning_s ? std::this_thread::yield() : static_cast<void>(usleep(kPause_us));
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) raise_nccl(result, comm_, during);
}

void Communicator::enqueue(const std::function<void(ncclComm_t)>& enqueue, std::string_view during) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) throw Error(text("the communicator was aborted before ", during));
  const CurrentDevice current(options_.device);
  const ncclResult_t started = ncclGroupStart();
  if (started != ncclSuccess) raise_nccl(started, comm_, during);
  try {
    enqueue(comm_);
  } catch (...) {
    static_cast<void>(ncclGroupEnd());  // the thread's group must be closed; what it says adds nothing
    throw;
  }
  settle(ncclGroupEnd(), options_.deadline_s, during);
}

void Communicator::look_for_errors() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || comm_ == nullptr) return;  // whoever holds it looks for itself
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) {
    raise_nccl(state, comm_, text("calls of group '", options_.name, "'"));
  }
}

void Communicator::abort() noexcept {
  aborted_.store(true);  // ends a wait that holds the lock
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  static_cast<void>(ncclCommAbort(comm_));
  comm_ = nullptr;
}

bool Communicator::finish() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return true;
  try {
    settle(ncclCommFinalize(comm_), kGoodbye_s, "the end of the group");
  } catch (const std::exception&) {
    return false;
  }
  static_cast<void>(ncclCommDestroy(comm_));
  comm_ = nullptr;
  return true;
}

}  // namespace lockstep::comm::nccl
