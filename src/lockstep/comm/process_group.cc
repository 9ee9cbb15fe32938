#include "lockstep/comm/process_group.h"

#include <exception>

#include "lockstep/comm/validate.h"

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
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter",
                                         "gather",     "all_to_all",     "send",       "receive",   "barrier"};
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

void ProcessGroup::reduce_scatter_uneven(Buffer input, Buffer output, Counts counts, Reduction reduction,
                                         CallOptions options) {
  run({.operation = Operation::reduce_scatter,
       .input = input,
       .output = output,
       .reduction = reduction,
       .options = options,
       .input_counts = counts});
}

Work ProcessGroup::reduce_scatter_uneven_async(Buffer input, Buffer output, Counts counts, Reduction reduction,
                                               CallOptions options) {
  return submit({.operation = Operation::reduce_scatter,
                 .input = input,
                 .output = output,
                 .reduction = reduction,
                 .options = options,
                 .input_counts = counts});
}

void ProcessGroup::all_gather(Buffer input, Buffer output, CallOptions options) {
  run({.operation = Operation::all_gather, .input = input, .output = output, .options = options});
}

Work ProcessGroup::all_gather_async(Buffer input, Buffer output, CallOptions options) {
  return submit({.operation = Operation::all_gather, .input = input, .output = output, .options = options});
}

void ProcessGroup::all_gather_uneven(Buffer input, Buffer output, Counts counts, CallOptions options) {
  run({.operation = Operation::all_gather,
       .input = input,
       .output = output,
       .options = options,
       .output_counts = counts});
}

Work ProcessGroup::all_gather_uneven_async(Buffer input, Buffer output, Counts counts, CallOptions options) {
  return submit({.operation = Operation::all_gather,
                 .input = input,
                 .output = output,
                 .options = options,
                 .output_counts = counts});
}

void ProcessGroup::broadcast(Buffer in_out, int root, CallOptions options) {
  run({.operation = Operation::broadcast, .input = in_out, .output = in_out, .peer = root, .options = options});
}

Work ProcessGroup::broadcast_async(Buffer in_out, int root, CallOptions options) {
  return submit(
      {.operation = Operation::broadcast, .input = in_out, .output = in_out, .peer = root, .options = options});
}

void ProcessGroup::reduce(Buffer input, Buffer output, int root, Reduction reduction, CallOptions options) {
  run({.operation = Operation::reduce,
       .input = input,
       .output = output,
       .reduction = reduction,
       .peer = root,
       .options = options});
}

Work ProcessGroup::reduce_async(Buffer input, Buffer output, int root, Reduction reduction, CallOptions options) {
  return submit({.operation = Operation::reduce,
                 .input = input,
                 .output = output,
                 .reduction = reduction,
                 .peer = root,
                 .options = options});
}

void ProcessGroup::scatter(Buffer input, Buffer output, int root, CallOptions options) {
  run({.operation = Operation::scatter, .input = input, .output = output, .peer = root, .options = options});
}

Work ProcessGroup::scatter_async(Buffer input, Buffer output, int root, CallOptions options) {
  return submit({.operation = Operation::scatter, .input = input, .output = output, .peer = root, .options = options});
}

void ProcessGroup::gather(Buffer input, Buffer output, int root, CallOptions options) {
  run({.operation = Operation::gather, .input = input, .output = output, .peer = root, .options = options});
}

Work ProcessGroup::gather_async(Buffer input, Buffer output, int root, CallOptions options) {
  return submit({.operation = Operation::gather, .input = input, .output = output, .peer = root, .options = options});
}

void ProcessGroup::all_to_all(Buffer input, Buffer output, CallOptions options) {
  run({.operation = Operation::all_to_all, .input = input, .output = output, .options = options});
}

Work ProcessGroup::all_to_all_async(Buffer input, Buffer output, CallOptions options) {
  return submit({.operation = Operation::all_to_all, .input = input, .output = output, .options = options});
}

void ProcessGroup::all_to_all_uneven(Buffer input, Counts input_counts, Buffer output, Counts output_counts,
                                     CallOptions options) {
  run({.operation = Operation::all_to_all,
       .input = input,
       .output = output,
       .options = options,
       .input_counts = input_counts,
       .output_counts = output_counts});
}

Work ProcessGroup::all_to_all_uneven_async(Buffer input, Counts input_counts, Buffer output, Counts output_counts,
                                           CallOptions options) {
  return submit({.operation = Operation::all_to_all,
                 .input = input,
                 .output = output,
                 .options = options,
                 .input_counts = input_counts,
                 .output_counts = output_counts});
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

std::vector<Work> ProcessGroup::submit_batch(std::span<const Call> calls) {
  for (const Call& call : calls) validate(call, rank(), size());
  std::vector<Work> works;
  for (const Call& call : calls) works.push_back(submit(call));
  return works;
}

void ProcessGroup::run_batch(std::span<const Call> calls) {
  std::exception_ptr first_error;
  for (const Work& work : submit_batch(calls)) {
    try {
      work.wait();
    } catch (...) {  // the caller's memory may be let go only when no message uses it
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

namespace {

Call call_of(const Message& message, const CallOptions& options) {
  const Call call{.operation = message.operation,
                  .input = message.buffer,
                  .output = message.buffer,
                  .peer = message.peer,
                  .options = options};
  if (!is_message(message.operation)) {
    throw InvalidArgument(text("batch: ", describe(call), ": a batch holds sends and receives only"));
  }
  return call;
}

std::vector<Call> calls_of(std::span<const Message> messages, const CallOptions& options) {
  std::vector<Call> calls;
  calls.reserve(messages.size());
  for (const Message& message : messages) calls.push_back(call_of(message, options));
  return calls;
}

}  // namespace

void ProcessGroup::batch(std::span<const Message> messages, CallOptions options) {
  if (messages.size() != 2) return run_batch(calls_of(messages, options));
  const Call both[] = {call_of(messages[0], options), call_of(messages[1], options)};  // not on the heap
  run_batch(both);
}

std::vector<Work> ProcessGroup::batch_async(std::span<const Message> messages, CallOptions options) {
  return submit_batch(calls_of(messages, options));
}

}  // namespace lockstep::comm
