#include "lockstep/comm/validate.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

[[noreturn]] void refuse(const Call& call, const std::string& rule) {
  throw InvalidArgument(text(describe(call), ": ", rule));
}

void validate_buffer(const Call& call, const Buffer& buffer, Device device, std::string_view which) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / element_size(DataType::f64);
  if (buffer.device != device) {
    throw Unsupported(text(describe(call), ": the ", which,
                           device == Device::cpu ? " is on a device; copy it to the host first"
                                                 : " is in host memory and the call's other data on a device; copy it "
                                                   "there first"));
  }
  if (buffer.count < 0) refuse(call, text("the ", which, " has ", buffer.count, " elements (nearest: 0)"));
  if (buffer.count > kMost) refuse(call, text("the ", which, " has more elements than memory can have"));
  if (buffer.count > 0 && buffer.data == nullptr) refuse(call, text("the ", which, " is a null pointer"));
}

void validate_same_type(const Call& call) {
  if (call.input.type == call.output.type) return;
  refuse(call,
         text("input is ", name(call.input.type), " and output ", name(call.output.type), "; they must be the same"));
}

void validate_whole(const Call& call, const Buffer& slice, const Buffer& whole, int size, std::string_view which) {
  if (whole.count % size == 0 && whole.count / size == slice.count) return;
  refuse(call, text("the ", which, " has ", whole.count, " elements; it must have ", size, " times ", slice.count,
                    " of them"));
}

// One part of `buffer` for each rank.
void validate_counts(const Call& call, Counts counts, const Buffer& buffer, int size, std::string_view which) {
  if (counts.size() != static_cast<size_t>(size)) {
    refuse(call, text("there are ", counts.size(), " counts for the ", which, "; it must be one for each of the ", size,
                      " ranks"));
  }
  int64_t left = buffer.count;
  for (const int64_t count : counts) {
    if (count < 0) refuse(call, text("one of the counts of the ", which, " is ", count, " (nearest: 0)"));
    if (count > left) refuse(call, text("the counts of the ", which, " exceed its ", buffer.count, " elements"));
    left -= count;
  }
  if (left > 0) {
    refuse(call, text("the ", which, " has ", buffer.count, " elements; its counts sum to ", buffer.count - left));
  }
}

void validate_own_part(const Call& call, const Buffer& part, int64_t count, std::string_view which) {
  if (part.count == count) return;
  refuse(call, text("the ", which, " has ", part.count, " elements; this rank's part has ", count));
}

void validate_buffers(const Call& call, bool is_root, Device device) {
  const Operation operation = call.operation;
  const bool in_place = operation == Operation::all_reduce || operation == Operation::broadcast;
  const bool has_input = operation == Operation::scatter
                             ? is_root
                             : !in_place && operation != Operation::receive && operation != Operation::barrier;
  const bool has_output = operation == Operation::reduce || operation == Operation::gather
                              ? is_root
                              : operation != Operation::send && operation != Operation::barrier;
  if (has_input) validate_buffer(call, call.input, device, "input");
  if (has_output) validate_buffer(call, call.output, device, in_place ? "buffer" : "output");
  if (has_input && has_output) validate_same_type(call);
}

void validate_sizes(const Call& call, int rank, int size) {
  const bool is_root = call.peer == rank;
  const auto own = static_cast<size_t>(rank);
  switch (call.operation) {
    case Operation::reduce_scatter:
      if (!call.uneven()) return validate_whole(call, call.output, call.input, size, "input");
      validate_counts(call, call.input_counts, call.input, size, "input");
      return validate_own_part(call, call.output, call.input_counts[own], "output");
    case Operation::all_gather:
      if (!call.uneven()) return validate_whole(call, call.input, call.output, size, "output");
      validate_counts(call, call.output_counts, call.output, size, "output");
      return validate_own_part(call, call.input, call.output_counts[own], "input");
    case Operation::all_to_all:
      if (call.uneven()) {
        validate_counts(call, call.input_counts, call.input, size, "input");
        const bool in_place = call.input.data == call.output.data && call.input.count > 0 && call.output.count > 0;
        if (in_place && !std::ranges::equal(call.input_counts, call.output_counts)) {
          refuse(call, "in place, the counts sent and received must be the same");
        }
        return validate_counts(call, call.output_counts, call.output, size, "output");
      }
      if (call.input.count % size != 0) {
        refuse(call, text("the input has ", call.input.count, " elements; it must have a multiple of ", size));
      }
      return validate_own_part(call, call.output, call.input.count, "output");
    case Operation::reduce:
      if (is_root) validate_own_part(call, call.output, call.input.count, "output");
      return;
    case Operation::scatter:
      if (is_root) validate_whole(call, call.output, call.input, size, "input");
      return;
    case Operation::gather:
      if (is_root) validate_whole(call, call.input, call.output, size, "output");
      return;
    default:
      return;
  }
}

bool is_integer(DataType type) {
  return type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
}

}  // namespace

void validate(const Call& call, int rank, int size, Device device) {
  const bool message = is_message(call.operation);
  if ((message || has_root(call.operation)) && (call.peer < 0 || call.peer >= size)) {
    refuse(call, text("the ", message ? "peer" : "root", " must be a rank of the group, 0 to ", size - 1));
  }
  if (message && call.peer == rank) refuse(call, "the peer must be another rank; copy the data instead");
  validate_buffers(call, call.peer == rank, device);
  validate_sizes(call, rank, size);
  const DataType type = call.operation == Operation::reduce ? call.input.type : call.output.type;
  if (reduces(call.operation) && call.reduction == Reduction::average && is_integer(type)) {
    refuse(call, "integers have no average; take the sum, or a floating-point type");
  }
}

}  // namespace lockstep::comm
