// Collectives on tensors, under torch.distributed's names (docs/torch_distributed.md has the table).
//
// Tensors are contiguous and of a type that comm::DataType lists; anything else is refused, never silently wrong.
// The _async forms return at once; the tensors are kept alive until the call is done and may be used after wait().
// All throw PeerLost, DeadlineExceeded, ProtocolMismatch, and InvalidArgument for tensors that do not fit the call.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

using comm::CallOptions;
using comm::ProcessGroup;
using comm::Reduction;
using comm::Work;

// The tensor's memory as a buffer that keeps it alive.
//   throws   InvalidArgument naming `what` when it is not contiguous, on a device without a backend or of another type
comm::Buffer buffer_of(const at::Tensor& tensor, std::string_view what);

// tensor [...] <- reduction over ranks, in place.
void all_reduce(at::Tensor& tensor, comm::ProcessGroup& group, Reduction reduction = Reduction::sum,
                CallOptions options = {});
Work all_reduce_async(at::Tensor& tensor, comm::ProcessGroup& group, Reduction reduction = Reduction::sum,
                      CallOptions options = {});

// output [size * n] <- every rank's input [n], in rank order; both flattened.
void all_gather_into_tensor(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                            CallOptions options = {});
Work all_gather_into_tensor_async(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                                  CallOptions options = {});

// output [n] <- this rank's n elements of the reduction of input [size * n]; both flattened.
void reduce_scatter_tensor(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                           Reduction reduction = Reduction::sum, CallOptions options = {});
Work reduce_scatter_tensor_async(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                                 Reduction reduction = Reduction::sum, CallOptions options = {});

// tensor <- rank src's.
void broadcast(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options = {});
Work broadcast_async(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options = {});

// Matched with the other rank's recv in order.
void send(const at::Tensor& tensor, int dst, comm::ProcessGroup& group, CallOptions options = {});
Work isend(const at::Tensor& tensor, int dst, comm::ProcessGroup& group, CallOptions options = {});
void recv(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options = {});
Work irecv(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options = {});

void barrier(comm::ProcessGroup& group, CallOptions options = {});

// A zeroed tensor in the group's registered memory: collectives on it go without copies.
at::Tensor registered_zeros(at::IntArrayRef sizes, at::ScalarType type, comm::ProcessGroup& group);

}  // namespace lockstep
