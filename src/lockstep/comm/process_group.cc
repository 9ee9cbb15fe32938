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

namespace {

Call make_call(Operation operation, Buffer input, Buffer output, CallOptions options) {
  return {.operation = operation, .input = input, .output = output, .options = options};
}

Call reducing(Call call, Reduction reduction) {
  call.reduction = reduction;
  return call;
}

Call with_peer(Call call, int peer) {
  call.peer = peer;
  return call;
}

}  // namespace

void ProcessGroup::all_reduce(Buffer in_out, Reduction reduction, CallOptions options) {
  run(reducing(make_call(Operation::all_reduce, in_out, in_out, options), reduction));
}

Work ProcessGroup::all_reduce_async(Buffer in_out, Reduction reduction, CallOptions options) {
  return submit(reducing(make_call(Operation::all_reduce, in_out, in_out, options), reduction));
}

void ProcessGroup::reduce_scatter(Buffer input, Buffer output, Reduction reduction, CallOptions options) {
  run(reducing(make_call(Operation::reduce_scatter, input, output, options), reduction));
}

Work ProcessGroup::reduce_scatter_async(Buffer input, Buffer output, Reduction reduction, CallOptions options) {
  return submit(reducing(make_call(Operation::reduce_scatter, input, output, options), reduction));
}

void ProcessGroup::all_gather(Buffer input, Buffer output, CallOptions options) {
  run(make_call(Operation::all_gather, input, output, options));
}

Work ProcessGroup::all_gather_async(Buffer input, Buffer output, CallOptions options) {
  return submit(make_call(Operation::all_gather, input, output, options));
}

void ProcessGroup::broadcast(Buffer in_out, int root, CallOptions options) {
  run(with_peer(make_call(Operation::broadcast, in_out, in_out, options), root));
}

Work ProcessGroup::broadcast_async(Buffer in_out, int root, CallOptions options) {
  return submit(with_peer(make_call(Operation::broadcast, in_out, in_out, options), root));
}

void ProcessGroup::send(Buffer input, int peer, CallOptions options) {
  run(with_peer(make_call(Operation::send, input, {}, options), peer));
}

Work ProcessGroup::send_async(Buffer input, int peer, CallOptions options) {
  return submit(with_peer(make_call(Operation::send, input, {}, options), peer));
}

void ProcessGroup::receive(Buffer output, int peer, CallOptions options) {
  run(with_peer(make_call(Operation::receive, {}, output, options), peer));
}

Work ProcessGroup::receive_async(Buffer output, int peer, CallOptions options) {
  return submit(with_peer(make_call(Operation::receive, {}, output, options), peer));
}

void ProcessGroup::barrier(CallOptions options) {
  run(make_call(Operation::barrier, {}, {}, options));
}

Work ProcessGroup::barrier_async(CallOptions options) {
  return submit(make_call(Operation::barrier, {}, {}, options));
}

}  // namespace lockstep::comm
