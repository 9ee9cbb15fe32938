#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

std::string_view name(DataType type) {
  constexpr std::string_view kNames[] = {"f32", "f64", "bf16", "f16", "i32", "i64", "u8"};
  return kNames[static_cast<int>(type)];
}

std::string_view name(Reduction reduction) {
  constexpr std::string_view kNames[] = {"sum", "average", "min", "max"};
  return kNames[static_cast<int>(reduction)];
}

std::string_view name(Operation operation) {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "send",       "receive",        "barrier"};
  return kNames[static_cast<int>(operation)];
}

void ProcessGroup::all_reduce(Buffer in_out, Reduction reduction, CallOptions options) {
  run({.operation = Operation::all_reduce,
       .input = in_out,
       .output = in_out,
       .reduction = reduction,
       .options = options});
}

Work ProcessGroup::all_reduce_async(Buffer in_out, Reduction reduction, CallOptions options) {
  return submit({.operation = Operation::all_reduce,
                 .input = in_out,
                 .output = in_out,
                 .reduction = reduction,
                 .options = options});
}

void ProcessGroup::reduce_scatter(Buffer input, Buffer output, Reduction reduction, CallOptions options) {
  run({.operation = Operation::reduce_scatter,
       .input = input,
       .output = output,
       .reduction = reduction,
       .options = options});
}

Work ProcessGroup::reduce_scatter_async(Buffer input, Buffer output, Reduction reduction, CallOptions options) {
  return submit({.operation = Operation::reduce_scatter,
                 .input = input,
                 .output = output,
                 .reduction = reduction,
                 .options = options});
}

void ProcessGroup::all_gather(Buffer input, Buffer output, CallOptions options) {
  run({.operation = Operation::all_gather, .input = input, .output = output, .options = options});
}

Work ProcessGroup::all_gather_async(Buffer input, Buffer output, CallOptions options) {
  return submit({.operation = Operation::all_gather, .input = input, .output = output, .options = options});
}

void ProcessGroup::broadcast(Buffer in_out, int root, CallOptions options) {
  run({.operation = Operation::broadcast, .input = in_out, .output = in_out, .peer = root, .options = options});
}

Work ProcessGroup::broadcast_async(Buffer in_out, int root, CallOptions options) {
  return submit(
      {.operation = Operation::broadcast, .input = in_out, .output = in_out, .peer = root, .options = options});
}

void ProcessGroup::send(Buffer input, int peer, CallOptions options) {
  run({.operation = Operation::send, .input = input, .peer = peer, .options = options});
}

Work ProcessGroup::send_async(Buffer input, int peer, CallOptions options) {
  return submit({.operation = Operation::send, .input = input, .peer = peer, .options = options});
}

void ProcessGroup::receive(Buffer output, int peer, CallOptions options) {
  run({.operation = Operation::receive, .output = output, .peer = peer, .options = options});
}

Work ProcessGroup::receive_async(Buffer output, int peer, CallOptions options) {
  return submit({.operation = Operation::receive, .output = output, .peer = peer, .options = options});
}

void ProcessGroup::barrier(CallOptions options) {
  run({.operation = Operation::barrier, .options = options});
}

Work ProcessGroup::barrier_async(CallOptions options) {
  return submit({.operation = Operation::barrier, .options = options});
}

}  // namespace lockstep::comm
