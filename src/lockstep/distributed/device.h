// What differs between devices, behind libtorch's own device registry: a CPU build and a CUDA build of libtorch compile
// the same file, and a device that the build lacks is one clear error.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace lockstep {

// "cpu", "cuda" (the GPU of this local rank) or "auto" (cuda where there is one, else cpu).
//   throws   Unsupported when the build or the machine has no such device; InvalidArgument for another name
c10::Device pick_device(const std::string& name, int local_rank);

int device_count(c10::DeviceType type);  // 0 when this build of libtorch has none

// Blocks until everything queued on the device's current stream is done; nothing to do on CPU.
void synchronize(c10::Device device);

// The stream that operations on the device now go to, as its runtime knows it (a cudaStream_t); null on CPU.
void* current_stream(c10::Device device);

}  // namespace lockstep
