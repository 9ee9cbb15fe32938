// Collectives on tensors, under torch.distributed's names (docs/torch_distributed.md has the table).
//
// Tensors are contiguous and of a type that comm::DataType lists; anything else is refused, never silently wrong.
// The _async forms return at once; the tensors are kept alive until the call is done and may be used after wait().
// All throw PeerLost, DeadlineExceeded, ProtocolMismatch, and InvalidArgument for tensors that do not fit the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

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

// tensor of rank dst <- reduction over ranks, in place; the others' tensors keep their values.
void reduce(at::Tensor& tensor, int dst, comm::ProcessGroup& group, Reduction reduction = Reduction::sum,
            CallOptions options = {});
Work reduce_async(at::Tensor& tensor, int dst, comm::ProcessGroup& group, Reduction reduction = Reduction::sum,
                  CallOptions options = {});

// output [n] <- this rank's n elements of rank src's input [size * n]; both flattened. The others' input may be
// undefined.
void scatter(at::Tensor& output, const at::Tensor& input, int src, comm::ProcessGroup& group, CallOptions options = {});
Work scatter_async(at::Tensor& output, const at::Tensor& input, int src, comm::ProcessGroup& group,
                   CallOptions options = {});

// output [size * n] of rank dst <- every rank's input [n], in rank order; both flattened. The others' output may be
// undefined.
void gather(const at::Tensor& input, at::Tensor& output, int dst, comm::ProcessGroup& group, CallOptions options = {});
Work gather_async(const at::Tensor& input, at::Tensor& output, int dst, comm::ProcessGroup& group,
                  CallOptions options = {});

// How dim 0 is divided among the ranks, as of torch's all_to_all_single. An empty list: evenly.
struct SplitSizes {
  std::vector<int64_t> output, input;
};

// Part r of output <- part `rank` of rank r's input, the parts along dim 0. What one rank sends to another is what that
// one expects from it.
//   throws   InvalidArgument when dim 0 is not divisible by the ranks, or split sizes do not sum to it
void all_to_all_single(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                       const SplitSizes& split_sizes = {}, CallOptions options = {});
Work all_to_all_single_async(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                             const SplitSizes& split_sizes = {}, CallOptions options = {});

// An all_gather into several tensors under way.
class ListWork {
 public:
  ListWork(Work work, at::Tensor flat, std::vector<at::Tensor> outputs)
      : work_(std::move(work)), flat_(std::move(flat)), outputs_(std::move(outputs)) {}
  // Returns when the outputs have their values, which they get here. Throws as Work::wait.
  void wait();
  bool done() const { return work_.done(); }

 private:
  Work work_;
  at::Tensor flat_;
  std::vector<at::Tensor> outputs_;  // copied to from flat_; none when that is their own memory
};

// outputs[r] <- rank r's input. Sizes may differ by rank; every rank's list has the same ones. Outputs that follow one
// another in one storage, as those of split(), are written where they lie, others over a flat copy.
//   throws   InvalidArgument for a list that is not one tensor of the input's type for each rank, the own one of the
//            input's size
void all_gather(std::vector<at::Tensor>& outputs, const at::Tensor& input, comm::ProcessGroup& group,
                CallOptions options = {});
ListWork all_gather_async(std::vector<at::Tensor>& outputs, const at::Tensor& input, comm::ProcessGroup& group,
                          CallOptions options = {});

// output <- the reduction over ranks of their inputs[rank]. Lists as of all_gather.
void reduce_scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, comm::ProcessGroup& group,
                    Reduction reduction = Reduction::sum, CallOptions options = {});
Work reduce_scatter_async(at::Tensor& output, const std::vector<at::Tensor>& inputs, comm::ProcessGroup& group,
                          Reduction reduction = Reduction::sum, CallOptions options = {});

// One send or receive of a batch.
struct P2POp {
  comm::Operation operation = comm::Operation::send;  // or receive
  at::Tensor tensor;
  int peer = -1;
};

// Sends and receives that are under way together, so that ranks may list theirs in any order.
//   throws   InvalidArgument, before any is sent, for one that no group could execute
std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations, comm::ProcessGroup& group,
                                    CallOptions options = {});

// Matched with the other rank's recv in order.
void send(const at::Tensor& tensor, int dst, comm::ProcessGroup& group, CallOptions options = {});
Work isend(const at::Tensor& tensor, int dst, comm::ProcessGroup& group, CallOptions options = {});
void recv(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options = {});
Work irecv(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options = {});

void barrier(comm::ProcessGroup& group, CallOptions options = {});

// A zeroed tensor in the group's registered memory: collectives on it go without copies.
at::Tensor registered_zeros(at::IntArrayRef sizes, at::ScalarType type, comm::ProcessGroup& group);

}  // namespace lockstep
