// What NCCL calls an operation of ours is made of.
#pragma once

#include <nccl.h>

#include <memory>

#include "lockstep/comm/nccl/cuda.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm::nccl {

// Puts `call`, which is valid (see validate) and on memory of the communicator's GPU, on the stream. Between
// ncclGroupStart and ncclGroupEnd. Parts without elements are left out, on both sides of them.
//   in_place_copy  of an all_to_all in place: its input, copied; else null
//   throws         Error for what NCCL refuses
void put_on_stream(const Call& call, int rank, int size, const void* in_place_copy, ncclComm_t comm,
                   cudaStream_t stream);

// Of an all_to_all whose output is its input, that input: what arrives must not replace what is still to be sent. Null
// for other calls. On the current device.
std::unique_ptr<StreamMemory> copy_if_in_place(const Call& call, cudaStream_t stream);

}  // namespace lockstep::comm::nccl
