#include "lockstep/base/error.h"
#include "lockstep/comm/host/host_group.h"

namespace lockstep::comm::host {
namespace {

[[noreturn]] void refuse(const Call& call, const std::string& rule) {
  throw InvalidArgument(text(describe(call), ": ", rule));
}

void validate_buffer(const Call& call, const Buffer& buffer, std::string_view which) {
  if (buffer.device != Device::cpu) {
    throw Unsupported(text(describe(call), ": the ", which, " is on a device; copy it to the host first"));
  }
  if (buffer.count < 0) refuse(call, text("the ", which, " has ", buffer.count, " elements (nearest: 0)"));
  if (buffer.count > 0 && buffer.data == nullptr) refuse(call, text("the ", which, " is a null pointer"));
}

void validate_sizes(const Call& call, const Buffer& slice, const Buffer& whole, int size, std::string_view which) {
  if (slice.type != whole.type) {
    refuse(call,
           text("input is ", name(call.input.type), " and output ", name(call.output.type), "; they must be the same"));
  }
  if (whole.count != slice.count * size) {
    refuse(call, text("the ", which, " has ", whole.count, " elements; it must have ", size, " times ", slice.count,
                      " = ", slice.count * size));
  }
}

}  // namespace

void validate(const Call& call, int rank, int size) {
  switch (call.operation) {
    case Operation::barrier:
      break;
    case Operation::all_reduce:
    case Operation::broadcast:
      validate_buffer(call, call.output, "buffer");
      break;
    case Operation::send:
      validate_buffer(call, call.input, "input");
      break;
    case Operation::receive:
      validate_buffer(call, call.output, "output");
      break;
    case Operation::reduce_scatter:
    case Operation::all_gather:
      validate_buffer(call, call.input, "input");
      validate_buffer(call, call.output, "output");
  }
  if (call.operation == Operation::reduce_scatter) validate_sizes(call, call.output, call.input, size, "input");
  if (call.operation == Operation::all_gather) validate_sizes(call, call.input, call.output, size, "output");

  const bool reduces = call.operation == Operation::all_reduce || call.operation == Operation::reduce_scatter;
  const DataType type = call.output.type;
  const bool integer = type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
  if (reduces && call.reduction == Reduction::average && integer) {
    refuse(call, "integers have no average; take the sum, or a floating-point type");
  }
  const bool messages = call.operation == Operation::send || call.operation == Operation::receive;
  if (messages || call.operation == Operation::broadcast) {
    if (call.peer < 0 || call.peer >= size) {
      refuse(call, text("the ", messages ? "peer" : "root", " must be a rank of the group, 0 to ", size - 1));
    }
  }
  if (messages && call.peer == rank) refuse(call, "the peer must be another rank; copy the data instead");
}

}  // namespace lockstep::comm::host
