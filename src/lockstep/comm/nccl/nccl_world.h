// GPUs, connected by NCCL: beside a group of the same ranks in host memory, one communicator for each group.
//
// Calls on memory of a GPU are put on a stream of the group's own, behind what the caller's stream (Buffer::stream)
// holds; Work::wait makes that stream wait in turn, so the host never blocks on data. Calls on host memory, barriers
// (which wait for no GPU) and allocate() are the host group's. It also carries the NCCL id, and the fingerprint of
// every call: ranks that disagree are found while their data is under way (see call_check.h), and the communicator is
// aborted. A thread, made with the first such call, sees calls end, errors of NCCL, ranks that die, and deadlines.
//
// Reductions are NCCL's own: the same bits on every rank, but added in NCCL's order, and bf16 and f16 rounded in each
// addition. Messages of a group go in the order in which they are made; those that must make progress beside one
// another are a batch.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Why this build has no NCCL; empty: it has.
std::string_view nccl_missing_because();

// GPUs that this process sees; 0 where there is no driver.
int num_gpus();

// The group of `host`'s ranks, which also takes memory of GPUs. Makes nothing on a GPU before the first such call;
// that one must be made by every rank. Each rank uses one GPU, that of its first call's memory.
//   throws   Unsupported where NCCL is missing
std::unique_ptr<ProcessGroup> with_nccl(std::unique_ptr<ProcessGroup> host);

}  // namespace lockstep::comm
