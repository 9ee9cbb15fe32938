// In place of CUDA's runtime and NCCL: memory of "GPUs" is the host's, a stream is a thread, ranks are threads of this
// process. The null stream is the thread that uses it: what is put on it is done when the call returns. Collectives of
// ranks that do not fit one another never end, sends end at once, and communicators are made while the caller polls.
#include "stand_in.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/comm/reduce.h"

namespace lockstep::stand_in {
namespace {

using comm::DataType;

constexpr int kGpus = 8;
thread_local int g_device = 0;

// -- streams and events ---------------------------------------------------------------------------------------------

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    put(nullptr);
    thread_.join();
  }
  void put(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      if (!work) return;
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

// One recording of an event.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;

  void pass() {
    {
      const std::lock_guard lock(mutex);
      passed = true;
    }
    changed.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
  }
};
struct Event {
  std::shared_ptr<Mark> mark;
};
Event& event_of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

// -- NCCL -----------------------------------------------------------------------------------------------------------

struct Operation {
  enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, receive } kind;
  const void* input;
  void* output;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t reduction;
  int peer;
  uint64_t number = 0;  // among the communicator's collectives

  bool fits(const Operation& other) const {
    return kind == other.kind && count == other.count && type == other.type && reduction == other.reduction &&
           peer == other.peer;
  }
};

DataType type_of(ncclDataType_t type) {
  static const std::map<ncclDataType_t, DataType> kTypes{{ncclFloat32, DataType::f32},   {ncclFloat64, DataType::f64},
                                                         {ncclBfloat16, DataType::bf16}, {ncclFloat16, DataType::f16},
                                                         {ncclInt32, DataType::i32},     {ncclInt64, DataType::i64},
                                                         {ncclUint8, DataType::u8}};
  return kTypes.at(type);
}
comm::Reduction reduction_of(ncclRedOp_t reduction) {
  static const std::map<ncclRedOp_t, comm::Reduction> kReductions{{ncclSum, comm::Reduction::sum},
                                                                  {ncclAvg, comm::Reduction::average},
                                                                  {ncclMin, comm::Reduction::min},
                                                                  {ncclMax, comm::Reduction::max}};
  return kReductions.at(reduction);
}

// What a rank gives to a collective.
struct Given {
  Operation operation;
  std::vector<char> input;
};
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  std::map<uint64_t, std::map<int, Given>> collectives;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> messages;  // by sender and receiver
};

std::mutex g_mutex;
std::map<uint64_t, std::shared_ptr<World>> g_worlds;  // by id
std::map<int, ncclResult_t> g_errors;
uint64_t g_ids = 0;

struct Communicator {
  std::shared_ptr<World> world;
  int rank = 0;
  std::atomic<bool> aborted{false};
  uint64_t collectives = 0;

  // As one kernel: whatever the order, all of them make progress.
  void run(const std::vector<Operation>& operations) {
    for (const Operation& each : operations) give(each);
    world->changed.notify_all();
    for (const Operation& each : operations) take(each);
  }

 private:
  using Kind = Operation::Kind;

  void give(const Operation& operation) {
    const auto bytes = static_cast<size_t>(element_size(type_of(operation.type))) * operation.count;
    const size_t parts = operation.kind == Kind::reduce_scatter ? static_cast<size_t>(world->size) : 1;
    const auto* const data = static_cast<const char*>(operation.input);
    const std::lock_guard lock(world->mutex);
    if (operation.kind == Kind::receive) return;
    std::vector<char> copy(data, data + bytes * parts);
    if (operation.kind == Kind::send) {
      world->messages[{rank, operation.peer}].push_back(std::move(copy));
    } else {
      world->collectives[operation.number][rank] = {operation, std::move(copy)};
    }
  }

  void take(const Operation& operation) {
    if (operation.kind == Kind::send) return;
    std::unique_lock lock(world->mutex);
    const auto await = [&](const std::function<bool()>& there) {
      while (!aborted.load() && !there()) world->changed.wait_for(lock, std::chrono::milliseconds(1));
      return !aborted.load();
    };
    if (operation.kind == Kind::receive) {
      auto& messages = world->messages[{operation.peer, rank}];
      if (!await([&] { return !messages.empty(); })) return;
      std::memcpy(operation.output, messages.front().data(), messages.front().size());
      messages.pop_front();
      return;
    }
    std::map<int, Given>& given = world->collectives[operation.number];
    const auto fits = [&] {
      if (given.size() < static_cast<size_t>(world->size)) return false;
      for (const auto& [member, theirs] : given) {
        if (!theirs.operation.fits(operation)) return false;
      }
      return true;
    };
    if (await(fits)) finish(operation, given);
  }

  void finish(const Operation& operation, std::map<int, Given>& given) const {
    const DataType type = type_of(operation.type);
    const auto bytes = static_cast<size_t>(element_size(type)) * operation.count;
    auto* const output = static_cast<char*>(operation.output);
    if (operation.kind == Kind::broadcast) {
      std::memcpy(output, given.at(operation.peer).input.data(), bytes);
    } else if (operation.kind == Kind::all_gather) {
      for (const auto& [member, theirs] : given) {
        std::memcpy(output + static_cast<size_t>(member) * bytes, theirs.input.data(), bytes);
      }
    } else if (operation.kind != Kind::reduce || operation.peer == rank) {
      const size_t offset = operation.kind == Kind::reduce_scatter ? static_cast<size_t>(rank) * bytes : 0;
      std::vector<const void*> inputs;
      for (const auto& [member, theirs] : given) inputs.push_back(theirs.input.data() + offset);
      void* const to = output;
      comm::reduce(type, reduction_of(operation.reduction), inputs, {&to, 1}, static_cast<int64_t>(operation.count),
                   false);
    }
  }
};

}  // namespace

void put_on(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  reinterpret_cast<Stream*>(stream)->put(std::move(work));
}

void report(int rank, ncclResult_t error) {
  const std::lock_guard lock(g_mutex);
  g_errors[rank] = error;
}

}  // namespace lockstep::stand_in

struct ncclComm {
  std::shared_ptr<lockstep::stand_in::Communicator> state;
};

namespace lockstep::stand_in {
namespace {

struct Launch {
  std::shared_ptr<Communicator> communicator;
  cudaStream_t stream = nullptr;
  std::vector<Operation> operations;
};
thread_local int g_depth = 0;
thread_local std::vector<Launch> g_launches;  // of the group that is open

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, Operation operation) {
  if (g_depth == 0) return ncclInvalidUsage;  // the backend makes groups of all it does
  const bool collective = operation.kind != Operation::Kind::send && operation.kind != Operation::Kind::receive;
  if (collective) operation.number = comm->state->collectives++;
  for (Launch& launch : g_launches) {
    if (launch.communicator != comm->state) continue;
    launch.operations.push_back(operation);
    return ncclSuccess;
  }
  g_launches.push_back({comm->state, stream, {operation}});
  return ncclSuccess;
}

}  // namespace
}  // namespace lockstep::stand_in

using namespace lockstep::stand_in;
using Kind = Operation::Kind;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kGpus;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = g_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  g_device = device;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "an error of the stand-in";
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = g_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<Stream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto mark = event_of(event).mark = std::make_shared<Mark>();
  put_on(stream, [mark] { mark->pass(); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (const auto mark = event_of(event).mark) put_on(stream, [mark] { mark->await(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto mark = event_of(event).mark;
  if (mark == nullptr) return cudaSuccess;
  const std::lock_guard lock(mark->mutex);
  return mark->passed ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  put_on(stream, [data] { std::free(data); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  put_on(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

const char* ncclGetErrorString(ncclResult_t) {
  return "an error of the stand-in";
}
const char* ncclGetLastError(ncclComm_t) {
  return "its last words";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(g_mutex);
  const uint64_t number = ++g_ids;
  std::memcpy(id->internal, &number, sizeof(number));
  g_worlds[number] = std::make_shared<World>();
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  const std::lock_guard lock(g_mutex);
  const std::shared_ptr<World> world = g_worlds.at(number);
  const std::lock_guard world_lock(world->mutex);
  world->size = size;
  ++world->joined;
  *comm = new ncclComm{std::make_shared<Communicator>()};
  (*comm)->state->world = world;
  (*comm)->state->rank = rank;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  World& world = *comm->state->world;
  {
    const std::lock_guard lock(world.mutex);
    *error = world.joined < world.size ? ncclInProgress : ncclSuccess;
  }
  const std::lock_guard lock(g_mutex);
  const auto reported = g_errors.find(comm->state->rank);
  if (reported != g_errors.end() && reported->second != ncclSuccess) *error = reported->second;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->state->aborted = true;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++g_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--g_depth > 0) return ncclSuccess;
  for (const Launch& launch : g_launches) {
    put_on(launch.stream, [launch] { launch.communicator->run(launch.operations); });
  }
  g_launches.clear();
  return ncclInProgress;
}
ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {Kind::all_reduce, input, output, count, type, reduction, -1});
}
ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {Kind::reduce_scatter, input, output, count, type, reduction, -1});
}
ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream, {Kind::all_gather, input, output, count, type, ncclSum, -1});
}
ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {Kind::broadcast, input, output, count, type, ncclSum, root});
}
ncclResult_t ncclReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {Kind::reduce, input, output, count, type, reduction, root});
}
ncclResult_t ncclSend(const void* input, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, stream, {Kind::send, input, nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* output, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {Kind::receive, nullptr, output, count, type, ncclSum, peer});
}

}  // extern "C"
