#include "lockstep/comm/mpi/native.h"

#include <mpi.h>

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::mpi {
namespace {

// For sums; what is only moved travels as bytes would.
MPI_Datatype type_of(DataType type) {
  switch (type) {
    case DataType::f32:
      return MPI_FLOAT;
    case DataType::f64:
      return MPI_DOUBLE;
    case DataType::i32:
      return MPI_INT32_T;
    case DataType::i64:
      return MPI_INT64_T;
    case DataType::u8:
      return MPI_UINT8_T;
    case DataType::bf16:
    case DataType::f16:
      return MPI_UINT16_T;
  }
  return MPI_BYTE;
}

MPI_Op operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::average:
      return MPI_SUM;
    case Reduction::min:
      return MPI_MIN;
    case Reduction::max:
      return MPI_MAX;
  }
  return MPI_OP_NULL;
}

bool is_half(DataType type) {
  return type == DataType::f16 || type == DataType::bf16;
}

}  // namespace

void NativeCollectives::refuse_what_mpi_cannot(const Call& call) {
  const Buffer& buffer = call.operation == Operation::reduce ? call.input : call.output;
  if (reduces(call.operation) && is_half(buffer.type)) {
    throw InvalidArgument(text(describe(call), ": MPI's own reductions know no ", comm::name(buffer.type),
                               "; name another algorithm, such as ring"));
  }
  if (reduces(call.operation) && buffer.type == DataType::u8 && call.reduction == Reduction::sum) {
    throw InvalidArgument(text(describe(call),
                               ": OpenMPI's own sums of u8 stop at 255 on some processors instead of "
                               "wrapping around; name another algorithm, such as ring"));
  }
  if (call.operation == Operation::all_to_all && call.uneven()) {
    throw InvalidArgument(text(describe(call),
                               ": in OpenMPI's own all_to_all of different counts a rank that moves nothing "
                               "loses step with the others for good; name another algorithm, such as pairwise"));
  }
  if (std::max(call.input.count, call.output.count) > std::numeric_limits<int>::max()) {
    throw InvalidArgument(text(describe(call), ": MPI's own collectives count in 31 bits; name another algorithm"));
  }
}

void NativeCollectives::make_communicator() {
  if (communicator_ != nullptr) return;
  MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, group_.size(), group_.world_ranks.data(), &members);
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_create_group(MPI_COMM_WORLD, members, tag_, &own);
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  communicator_ = pack(own);
}

NativeCollectives::Parts NativeCollectives::parts_of(const Buffer& whole, Counts counts) const {
  Parts parts;
  int offset = 0;
  for (int r = 0; r < group_.size(); ++r) {
    const int64_t count = counts.empty() ? whole.count / group_.size() : counts[static_cast<size_t>(r)];
    parts.counts.push_back(static_cast<int>(count));
    parts.offsets.push_back(offset);
    offset += static_cast<int>(count);
  }
  return parts;
}

// MPI_IN_PLACE would have to be the choice of every member, except where the root alone has two buffers.
void* NativeCollectives::input_apart(const Call& call) const {
  const char* const output = static_cast<const char*>(call.output.data);
  const char* const input = static_cast<const char*>(call.input.data);
  const bool apart = input + call.input.bytes() <= output || output + call.output.bytes() <= input;
  if (apart) return call.input.data;
  memory_->input.assign(input, input + call.input.bytes());
  return memory_->input.data();
}

Pending NativeCollectives::start(const Call& call) {
  make_communicator();
  const auto own = unpack<MPI_Comm>(communicator_);
  const MPI_Datatype type = type_of((call.operation == Operation::reduce ? call.input : call.output).type);
  const MPI_Op op = operation_of(call.reduction);
  const int input = static_cast<int>(call.input.count), output = static_cast<int>(call.output.count);
  void* const from = call.input.data;
  void* const to = call.output.data;
  Parts& sent = memory_->sent = parts_of(call.input, call.input_counts);
  Parts& received = memory_->received = parts_of(call.output, call.output_counts);
  const bool is_root = call.peer == group_.rank;
  const auto is_own_slice = [&](const void* part, const Buffer& whole, const Parts& parts) {
    const int offset = parts.offsets[static_cast<size_t>(group_.rank)];
    return is_root && part == static_cast<char*>(whole.data) + offset * element_size(whole.type);
  };
  const bool root_in_place = is_root && from == to;
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_SUCCESS;
  switch (call.operation) {
    case Operation::all_reduce:
      code = MPI_Iallreduce(MPI_IN_PLACE, to, output, type, op, own, &request);
      break;
    case Operation::reduce:
      code = MPI_Ireduce(root_in_place ? MPI_IN_PLACE : from, to, input, type, op, call.peer, own, &request);
      break;
    case Operation::broadcast:
      code = MPI_Ibcast(to, output, type, call.peer, own, &request);
      break;
    case Operation::reduce_scatter:
      code = MPI_Ireduce_scatter(input_apart(call), to, sent.counts.data(), type, op, own, &request);
      break;
    case Operation::all_gather:
      code = MPI_Iallgatherv(input_apart(call), input, type, to, received.counts.data(), received.offsets.data(), type,
                             own, &request);
      break;
    case Operation::scatter:
      code = MPI_Iscatter(from, output, type, is_own_slice(to, call.input, sent) ? MPI_IN_PLACE : to, output, type,
                          call.peer, own, &request);
      break;
    case Operation::gather:
      code = MPI_Igather(is_own_slice(from, call.output, received) ? MPI_IN_PLACE : from, input, type, to, input, type,
                         call.peer, own, &request);
      break;
    case Operation::all_to_all:
      code = MPI_Ialltoall(input_apart(call), input / group_.size(), type, to, output / group_.size(), type, own,
                           &request);
      break;
    case Operation::barrier:
    case Operation::send:
    case Operation::receive:
      LOCKSTEP_CHECK(false, comm::name(call.operation), " is none of MPI's collectives here");
  }
  session_.check(code, -1);
  return {pack(request), -1};
}

void NativeCollectives::finish(const Call& call) const {
  if (!reduces(call.operation) || call.reduction != Reduction::average) return;
  const bool takes = call.operation != Operation::reduce || call.peer == group_.rank;
  if (takes) divide(call.output.type, call.output.data, call.output.count, group_.size());
}

}  // namespace lockstep::comm::mpi
