#include "lockstep/distributed/collectives.h"

#include <ATen/ops/from_blob.h>

namespace lockstep {
namespace {

comm::DataType data_type_of(const at::Tensor& tensor, std::string_view what) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return comm::DataType::f32;
    case at::kDouble:
      return comm::DataType::f64;
    case at::kBFloat16:
      return comm::DataType::bf16;
    case at::kHalf:
      return comm::DataType::f16;
    case at::kInt:
      return comm::DataType::i32;
    case at::kLong:
      return comm::DataType::i64;
    case at::kByte:
      return comm::DataType::u8;
    default:
      throw InvalidArgument(
          text(what, ".dtype = ", at::toString(tensor.scalar_type()),
               ": must be float32, float64, bfloat16, float16, int32, int64 or uint8; convert it first"));
  }
}

void require_same_type(const at::Tensor& output, const at::Tensor& input, std::string_view operation) {
  if (output.scalar_type() == input.scalar_type()) return;
  throw InvalidArgument(text(operation, ": output is ", at::toString(output.scalar_type()), " but input is ",
                             at::toString(input.scalar_type()), "; they must be the same"));
}

void require_count(const char* name, const at::Tensor& large, int64_t expected, std::string_view operation) {
  if (large.numel() == expected) return;
  throw InvalidArgument(
      text(operation, ": ", name, " has ", large.numel(), " elements; must be ranks x the other's = ", expected));
}

void check_gather(const at::Tensor& output, const at::Tensor& input, const comm::ProcessGroup& group) {
  require_same_type(output, input, "all_gather_into_tensor");
  require_count("output", output, input.numel() * group.size(), "all_gather_into_tensor");
}

void check_scatter(const at::Tensor& output, const at::Tensor& input, const comm::ProcessGroup& group) {
  require_same_type(output, input, "reduce_scatter_tensor");
  require_count("input", input, output.numel() * group.size(), "reduce_scatter_tensor");
}

}  // namespace

comm::Buffer buffer_of(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.defined()) throw InvalidArgument(text(what, " is an undefined tensor"));
  if (!tensor.is_contiguous()) {
    throw InvalidArgument(text(what, " of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                               " is not contiguous; pass .contiguous() and copy the result back"));
  }
  if (!tensor.device().is_cpu()) {
    throw Unsupported(text(what, " is on ", tensor.device().str(),
                           ": this build has no backend between such devices; move it to cpu"));
  }
  return {.data = tensor.data_ptr(),
          .count = tensor.numel(),
          .type = data_type_of(tensor, what),
          .keep_alive = std::shared_ptr<const void>(tensor.storage().unsafeGetStorageImpl(),
                                                    [kept = tensor.storage()](const void*) {})};
}

void all_reduce(at::Tensor& tensor, comm::ProcessGroup& group, Reduction reduction, CallOptions options) {
  group.all_reduce(buffer_of(tensor, "all_reduce: tensor"), reduction, options);
}
Work all_reduce_async(at::Tensor& tensor, comm::ProcessGroup& group, Reduction reduction, CallOptions options) {
  return group.all_reduce_async(buffer_of(tensor, "all_reduce: tensor"), reduction, options);
}

void all_gather_into_tensor(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                            CallOptions options) {
  check_gather(output, input, group);
  group.all_gather(buffer_of(input, "all_gather_into_tensor: input"),
                   buffer_of(output, "all_gather_into_tensor: output"), options);
}
Work all_gather_into_tensor_async(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                                  CallOptions options) {
  check_gather(output, input, group);
  return group.all_gather_async(buffer_of(input, "all_gather_into_tensor: input"),
                                buffer_of(output, "all_gather_into_tensor: output"), options);
}

void reduce_scatter_tensor(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group, Reduction reduction,
                           CallOptions options) {
  check_scatter(output, input, group);
  group.reduce_scatter(buffer_of(input, "reduce_scatter_tensor: input"),
                       buffer_of(output, "reduce_scatter_tensor: output"), reduction, options);
}
Work reduce_scatter_tensor_async(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                                 Reduction reduction, CallOptions options) {
  check_scatter(output, input, group);
  return group.reduce_scatter_async(buffer_of(input, "reduce_scatter_tensor: input"),
                                    buffer_of(output, "reduce_scatter_tensor: output"), reduction, options);
}

void broadcast(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options) {
  group.broadcast(buffer_of(tensor, "broadcast: tensor"), src, options);
}
Work broadcast_async(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options) {
  return group.broadcast_async(buffer_of(tensor, "broadcast: tensor"), src, options);
}

void send(const at::Tensor& tensor, int dst, comm::ProcessGroup& group, CallOptions options) {
  group.send(buffer_of(tensor, "send: tensor"), dst, options);
}
Work isend(const at::Tensor& tensor, int dst, comm::ProcessGroup& group, CallOptions options) {
  return group.send_async(buffer_of(tensor, "isend: tensor"), dst, options);
}
void recv(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options) {
  group.receive(buffer_of(tensor, "recv: tensor"), src, options);
}
Work irecv(at::Tensor& tensor, int src, comm::ProcessGroup& group, CallOptions options) {
  return group.receive_async(buffer_of(tensor, "irecv: tensor"), src, options);
}

void barrier(comm::ProcessGroup& group, CallOptions options) {
  group.barrier(options);
}

at::Tensor registered_zeros(at::IntArrayRef sizes, at::ScalarType type, comm::ProcessGroup& group) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const auto memory = group.allocate(count * static_cast<int64_t>(at::elementSize(type)));
  return at::from_blob(memory.data(), sizes, [kept = memory.memory](void*) {}, at::TensorOptions().dtype(type));
}

}  // namespace lockstep
