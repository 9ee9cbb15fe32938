#include "lockstep/comm/nccl/operations.h"

#include "lockstep/comm/call_info.h"
#include "lockstep/comm/nccl/communicator.h"

namespace lockstep::comm::nccl {
namespace {

ncclDataType_t type_of(DataType type) {
  constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat16,
                                       ncclInt32,   ncclInt64,   ncclUint8};
  return kTypes[static_cast<int>(type)];
}

ncclRedOp_t reduction_of(Reduction reduction) {
  constexpr ncclRedOp_t kReductions[] = {ncclSum, ncclAvg, ncclMin, ncclMax};
  return kReductions[static_cast<int>(reduction)];
}

// One call, as its rank makes it.
class Operations {
 public:
  Operations(const Call& call, int rank, int size, const void* in_place_copy, ncclComm_t comm, cudaStream_t stream)
      : call_(call),
        rank_(rank),
        size_(size),
        info_(info_of(call)),
        input_(static_cast<const char*>(in_place_copy != nullptr ? in_place_copy : call.input.data)),
        output_(static_cast<char*>(call.output.data)),
        comm_(comm),
        stream_(stream) {}

  void put() {
    if (info_.count == 0 && !info_.uneven) return;
    switch (call_.operation) {
      case Operation::all_reduce:
        return check(ncclAllReduce(input_, output_, count(call_.input), type(), reduction(), comm_, stream_));
      case Operation::reduce_scatter:
        return call_.uneven() ? reduce_scatter_uneven() : reduce_scatter();
      case Operation::all_gather:
        return call_.uneven() ? all_gather_uneven() : all_gather();
      case Operation::broadcast:
        return check(ncclBroadcast(input_, output_, count(call_.input), type(), call_.peer, comm_, stream_));
      case Operation::reduce:
        return check(ncclReduce(input_, output_, count(call_.input), type(), reduction(), call_.peer, comm_, stream_));
      case Operation::scatter:
        return scatter();
      case Operation::gather:
        return gather();
      case Operation::all_to_all:
        return all_to_all();
      case Operation::send:
        return send(input_, call_.input.count, call_.peer);
      case Operation::receive:
        return receive(output_, call_.output.count, call_.peer);
      case Operation::barrier:
        break;
    }
    LOCKSTEP_CHECK(false, "a barrier is the host group's");
  }

 private:
  static size_t count(const Buffer& buffer) { return static_cast<size_t>(buffer.count); }
  ncclDataType_t type() const { return type_of(info_.type); }
  ncclRedOp_t reduction() const { return reduction_of(call_.reduction); }
  int64_t bytes(int64_t elements) const { return elements * element_size(info_.type); }

  // In nonblocking mode NCCL may still be at it.
  void check(ncclResult_t result) const {
    if (result != ncclSuccess && result != ncclInProgress) raise_nccl(result, comm_, describe(info_));
  }

  void send(const char* data, int64_t elements, int peer) const {
    if (elements > 0) check(ncclSend(data, static_cast<size_t>(elements), type(), peer, comm_, stream_));
  }
  void receive(char* data, int64_t elements, int peer) const {
    if (elements > 0) check(ncclRecv(data, static_cast<size_t>(elements), type(), peer, comm_, stream_));
  }

  void reduce_scatter() {
    check(ncclReduceScatter(input_, output_, count(call_.output), type(), reduction(), comm_, stream_));
  }

  void reduce_scatter_uneven() {
    const char* part = input_;
    for (int r = 0; r < size_; ++r) {
      const int64_t elements = call_.input_counts[static_cast<size_t>(r)];
      char* const result = r == rank_ ? output_ : nullptr;
      if (elements > 0) {
        check(ncclReduce(part, result, static_cast<size_t>(elements), type(), reduction(), r, comm_, stream_));
      }
      part += bytes(elements);
    }
  }

  void all_gather() { check(ncclAllGather(input_, output_, count(call_.input), type(), comm_, stream_)); }

  void all_gather_uneven() {
    char* part = output_;
    for (int r = 0; r < size_; ++r) {
      const int64_t elements = call_.output_counts[static_cast<size_t>(r)];
      const char* const from = r == rank_ ? input_ : part;
      if (elements > 0) {
        check(ncclBroadcast(from, part, static_cast<size_t>(elements), type(), r, comm_, stream_));
      }
      part += bytes(elements);
    }
  }

  void scatter() {
    const int64_t elements = call_.output.count;
    if (rank_ != call_.peer) return receive(output_, elements, call_.peer);
    for (int r = 0; r < size_; ++r) {
      const char* const part = input_ + bytes(r * elements);
      if (r == rank_ && part == output_) continue;
      send(part, elements, r);
      if (r == rank_) receive(output_, elements, r);
    }
  }

  void gather() {
    const int64_t elements = call_.input.count;
    if (rank_ != call_.peer) return send(input_, elements, call_.peer);
    for (int r = 0; r < size_; ++r) {
      char* const part = output_ + bytes(r * elements);
      if (r == rank_ && part == input_) continue;
      receive(part, elements, r);
      if (r == rank_) send(input_, elements, r);
    }
  }

  void all_to_all() {
    const char* sent = input_;
    char* received = output_;
    for (int r = 0; r < size_; ++r) {
      const int64_t to = call_.uneven() ? call_.input_counts[static_cast<size_t>(r)] : call_.input.count / size_;
      const int64_t from = call_.uneven() ? call_.output_counts[static_cast<size_t>(r)] : call_.output.count / size_;
      send(sent, to, r);
      receive(received, from, r);
      sent += bytes(to);
      received += bytes(from);
    }
  }

  const Call& call_;
  const int rank_, size_;
  const CallInfo info_;
  const char* const input_;
  char* const output_;
  const ncclComm_t comm_;
  const cudaStream_t stream_;
};

}  // namespace

void put_on_stream(const Call& call, int rank, int size, const void* in_place_copy, ncclComm_t comm,
                   cudaStream_t stream) {
  Operations(call, rank, size, in_place_copy, comm, stream).put();
}

std::unique_ptr<StreamMemory> copy_if_in_place(const Call& call, cudaStream_t stream) {
  if (call.operation != Operation::all_to_all || call.input.data != call.output.data || call.input.count == 0) {
    return nullptr;
  }
  auto copy = std::make_unique<StreamMemory>(call.input.bytes(), stream);
  check_cuda(cudaMemcpyAsync(copy->data(), call.input.data, static_cast<size_t>(call.input.bytes()),
                             cudaMemcpyDeviceToDevice, stream),
             "copying the input of an exchange in place");
  return copy;
}

}  // namespace lockstep::comm::nccl
