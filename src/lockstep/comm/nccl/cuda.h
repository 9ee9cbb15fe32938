// The little of CUDA's runtime that the backend uses, owned and checked.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

namespace lockstep::comm::nccl {

// throws  Unsupported where there is no GPU or no driver for it, else Error, both naming `what`
void check_cuda(cudaError_t result, std::string_view what);

// The GPU whose memory `data` is; the thread's current one for a null pointer.
//   throws  InvalidArgument for host memory
int device_of(const void* data);

// Makes a GPU the thread's current one for as long as it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
};

// A place in a stream.
class Event {
 public:
  Event();  // on the current device
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream);
  // What is put on `stream` from now on waits for it.
  void hold(cudaStream_t stream) const;
  // Whether the stream has come to it. One that was never recorded counts as passed.
  //   throws  Error for what went wrong on the GPU before it
  bool passed() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Of the highest priority: communication should not wait for a free processor.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Memory that lives from here to there in a stream.
class StreamMemory {
 public:
  StreamMemory(int64_t bytes, cudaStream_t stream);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace lockstep::comm::nccl
