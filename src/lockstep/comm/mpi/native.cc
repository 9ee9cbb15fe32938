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

Pending NativeCollectives::start(const Call& call) {
  make_communicator();
  const auto own = unpack<MPI_Comm>(communicator_);
  const MPI_Datatype type = type_of((call.operation == Operation::reduce ? call.input : call.output).type);
  const MPI_Op op = operation_of(call.reduction);
  const int input = static_cast<int>(call.input.count), output = static_cast<int>(call.output.count);
  void* from = call.input.data;
  void* const to = call.output.data;
  const bool is_root = call.peer == group_.rank;
  const bool same = from == to;
  auto& [sent, received, copied] = *memory_;
  sent = parts_of(call.input, call.input_counts);
  received = parts_of(call.output, call.output_counts);
  const size_t rank = static_cast<size_t>(group_.rank);
  const auto slice = [&](const Buffer& whole, const Parts& parts) {
    return static_cast<void*>(static_cast<char*>(whole.data) + parts.offsets[rank] * element_size(whole.type));
  };
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_SUCCESS;
  // MPI_IN_PLACE would have to be the choice of every member, except where the root alone has two buffers.
  const auto use_a_copy_of_the_input = [&, &copied = copied] {
    copied.assign(static_cast<char*>(from), static_cast<char*>(from) + call.input.bytes());
    from = copied.data();
  };
  switch (call.operation) {
    case Operation::all_reduce:
      code = MPI_Iallreduce(MPI_IN_PLACE, to, output, type, op, own, &request);
      break;
    case Operation::reduce:
      code = MPI_Ireduce(is_root && same ? MPI_IN_PLACE : from, to, input, type, op, call.peer, own, &request);
      break;
    case Operation::broadcast:
      code = MPI_Ibcast(to, output, type, call.peer, own, &request);
      break;
    case Operation::reduce_scatter:
      if (to == slice(call.input, sent)) use_a_copy_of_the_input();
      code = MPI_Ireduce_scatter(from, to, sent.counts.data(), type, op, own, &request);
      break;
    case Operation::all_gather:
      if (from == slice(call.output, received)) use_a_copy_of_the_input();
      code =
          MPI_Iallgatherv(from, input, type, to, received.counts.data(), received.offsets.data(), type, own, &request);
      break;
    case Operation::scatter:
      code = MPI_Iscatter(from, output, type, is_root && to == slice(call.input, sent) ? MPI_IN_PLACE : to, output,
                          type, call.peer, own, &request);
      break;
    case Operation::gather:
      code = MPI_Igather(is_root && from == slice(call.output, received) ? MPI_IN_PLACE : from, input, type, to, input,
                         type, call.peer, own, &request);
      break;
    case Operation::all_to_all:
      if (same) use_a_copy_of_the_input();
      code = MPI_Ialltoallv(from, sent.counts.data(), sent.offsets.data(), type, to, received.counts.data(),
                            received.offsets.data(), type, own, &request);
      break;
    case Operation::barrier:
    case Operation::send:
    case Operation::receive:
      LOCKSTEP_CHECK(false, name(call.operation), " is none of MPI's collectives here");
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
