#include "lockstep/comm/nccl/cuda.h"

#include "lockstep/base/error.h"

namespace lockstep::comm::nccl {

void check_cuda(cudaError_t result, std::string_view what) {
  if (result == cudaSuccess) return;
  const std::string message = text("CUDA: ", what, ": ", cudaGetErrorString(result));
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver || result == cudaErrorStubLibrary) {
    throw Unsupported(text(message, "; this host has no GPU that its driver gives"));
  }
  throw Error(message);
}

int device_of(const void* data) {
  int device = 0;
  if (data == nullptr) {
    check_cuda(cudaGetDevice(&device), "asking for the current GPU");
    return device;
  }
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, data), "asking whose memory a buffer is");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    throw InvalidArgument("a buffer said to be on a GPU is in host memory");
  }
  return attributes.device;
}

CurrentDevice::CurrentDevice(int device) {
  check_cuda(cudaGetDevice(&previous_), "asking for the current GPU");
  check_cuda(cudaSetDevice(device), text("choosing GPU ", device));
}

CurrentDevice::~CurrentDevice() {
  static_cast<void>(cudaSetDevice(previous_));
}

Event::Event() {
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
}

Event::~Event() {
  static_cast<void>(cudaEventDestroy(event_));
}

void Event::record(cudaStream_t stream) {
  check_cuda(cudaEventRecord(event_, stream), "recording an event");
}

void Event::hold(cudaStream_t stream) const {
  check_cuda(cudaStreamWaitEvent(stream, event_, 0), "making a stream wait");
}

bool Event::passed() const {
  const cudaError_t result = cudaEventQuery(event_);
  if (result == cudaErrorNotReady) return false;
  check_cuda(result, "a kernel before the end of a call");
  return true;
}

Stream::Stream(int device) {
  const CurrentDevice current(device);
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "making a stream");
}

Stream::~Stream() {
  static_cast<void>(cudaStreamDestroy(stream_));
}

StreamMemory::StreamMemory(int64_t bytes, cudaStream_t stream) : stream_(stream) {
  check_cuda(cudaMallocAsync(&data_, static_cast<size_t>(bytes), stream),
             text("allocating ", bytes, " bytes for an exchange in place"));
}

StreamMemory::~StreamMemory() {
  static_cast<void>(cudaFreeAsync(data_, stream_));
}

}  // namespace lockstep::comm::nccl
