// What a test can do to the stand-in for CUDA's runtime and NCCL (stand_in.cc).
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>

namespace lockstep::stand_in {

// Puts work on a stream, as a kernel would be.
void put_on(cudaStream_t stream, std::function<void()> work);

// From now on NCCL reports this of that rank's communicators; ncclSuccess: nothing any more.
void report(int rank, ncclResult_t error);

}  // namespace lockstep::stand_in
