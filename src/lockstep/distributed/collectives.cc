#include "lockstep/distributed/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "lockstep/distributed/device.h"
#include "lockstep/distributed/memory.h"

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

// The root's buffer of a scatter or gather; the others' is not looked at.
comm::Buffer root_buffer_of(const at::Tensor& tensor, int root, const comm::ProcessGroup& group,
                            std::string_view what) {
  return group.rank() == root ? buffer_of(tensor, what) : comm::Buffer{};
}

// Elements of each rank's part of dim 0, whose rows have `row` elements.
std::vector<int64_t> counts_of(const at::Tensor& tensor, const std::vector<int64_t>& split_sizes, int64_t row,
                               int ranks, const char* name) {
  std::vector<int64_t> counts = split_sizes;
  if (counts.empty()) {
    if (tensor.size(0) % ranks != 0) {
      throw InvalidArgument(text("all_to_all_single: dim 0 of the ", name, " is ", tensor.size(0),
                                 "; without split sizes it must be divisible by the ", ranks, " ranks"));
    }
    counts.assign(static_cast<size_t>(ranks), tensor.size(0) / ranks);
  }
  int64_t left = tensor.size(0);
  for (int64_t& count : counts) {
    if (count < 0 || count > left) left = -1;
    if (left < 0) break;
    left -= count;
    count *= row;
  }
  if (left != 0 || counts.size() != static_cast<size_t>(ranks)) {
    throw InvalidArgument(text("all_to_all_single: split sizes [", join(split_sizes), "] of the ", name,
                               " must be one for each of the ", ranks, " ranks and sum to dim 0 = ", tensor.size(0)));
  }
  return counts;
}

// Makes the call of an all_to_all_single with `make`; its counts live until that returns.
template <class Make>
void with_split_sizes(const at::Tensor& output, const at::Tensor& input, const comm::ProcessGroup& group,
                      const SplitSizes& split_sizes, const CallOptions& options, Make make) {
  comm::Call call{.operation = comm::Operation::all_to_all,
                  .input = buffer_of(input, "all_to_all_single: input"),
                  .output = buffer_of(output, "all_to_all_single: output"),
                  .options = options};
  require_same_type(output, input, "all_to_all_single");
  if (input.dim() == 0 || output.dim() == 0 || input.sizes().slice(1) != output.sizes().slice(1)) {
    throw InvalidArgument(text("all_to_all_single: output of sizes ", output.sizes(), " and input of sizes ",
                               input.sizes(), " must be the same but in dim 0"));
  }
  int64_t row = 1;
  for (const int64_t size : input.sizes().slice(1)) row *= size;
  const std::vector<int64_t> input_counts = counts_of(input, split_sizes.input, row, group.size(), "input");
  const std::vector<int64_t> output_counts = counts_of(output, split_sizes.output, row, group.size(), "output");
  if (!split_sizes.input.empty() || !split_sizes.output.empty()) {
    call.input_counts = input_counts;
    call.output_counts = output_counts;
  }
  make(call);
}

// Elements of each tensor of a list that has one for each rank.
std::vector<int64_t> counts_of_list(const std::vector<at::Tensor>& list, const at::Tensor& own,
                                    const comm::ProcessGroup& group, std::string_view operation) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : list) {
    buffer_of(tensor, text(operation, ": tensor ", counts.size(), " of the list"));
    require_same_type(tensor, own, operation);
    counts.push_back(tensor.numel());
  }
  if (counts.size() != static_cast<size_t>(group.size())) {
    throw InvalidArgument(text(operation, ": the list has ", counts.size(), " tensors; must be one for each of the ",
                               group.size(), " ranks"));
  }
  if (counts[static_cast<size_t>(group.rank())] != own.numel()) {
    throw InvalidArgument(text(operation, ": tensor ", group.rank(), " of the list has ",
                               counts[static_cast<size_t>(group.rank())], " elements, this rank's tensor ", own.numel(),
                               "; they must be the same"));
  }
  return counts;
}

// All of a list as one flat tensor over their own memory; undefined when they do not follow one another.
at::Tensor joined(const std::vector<at::Tensor>& list) {
  const at::Tensor* first = nullptr;
  int64_t end = 0, count = 0;
  for (const at::Tensor& tensor : list) {
    if (tensor.numel() == 0) continue;
    if (first == nullptr) {
      first = &tensor;
      end = tensor.storage_offset();
    }
    if (!tensor.storage().is_alias_of(first->storage()) || tensor.storage_offset() != end) return {};
    end += tensor.numel();
    count += tensor.numel();
  }
  return first == nullptr ? at::Tensor() : first->detach().as_strided({count}, {1});
}

// An all_gather into a list: the flat tensor it goes to, and the tensors that are copied from there.
struct ListCall {
  at::Tensor flat;
  std::vector<at::Tensor> copied;
  std::vector<int64_t> counts;
};

ListCall list_call(const std::vector<at::Tensor>& outputs, const at::Tensor& input, const comm::ProcessGroup& group) {
  ListCall call{.counts = counts_of_list(outputs, input, group, "all_gather")};
  call.flat = joined(outputs);
  if (!call.flat.defined()) {
    int64_t count = 0;
    for (const int64_t part : call.counts) count += part;
    call.flat = at::empty({count}, input.options().requires_grad(false));
    call.copied = outputs;
  }
  return call;
}

at::Tensor flat_inputs(const std::vector<at::Tensor>& inputs) {
  if (at::Tensor flat = joined(inputs); flat.defined()) return flat;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& input : inputs) parts.push_back(input.detach().flatten());
  return at::cat(parts);
}

std::vector<comm::Message> messages_of(const std::vector<P2POp>& operations) {
  std::vector<comm::Message> messages;
  for (const P2POp& operation : operations) {
    messages.push_back({operation.operation,
                        buffer_of(operation.tensor, text("batch_isend_irecv: tensor ", messages.size())),
                        operation.peer});
  }
  return messages;
}

}  // namespace

comm::Buffer buffer_of(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.defined()) throw InvalidArgument(text(what, " is an undefined tensor"));
  if (!tensor.is_contiguous()) {
    throw InvalidArgument(text(what, " of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                               " is not contiguous; pass .contiguous() and copy the result back"));
  }
  const c10::Device device = tensor.device();
  if (!device.is_cpu() && !device.is_cuda()) {
    throw Unsupported(
        text(what, " is on ", device.str(), ": there is no backend between such devices; move it to cpu"));
  }
  return {.data = tensor.data_ptr(),
          .count = tensor.numel(),
          .type = data_type_of(tensor, what),
          .device = device.is_cuda() ? comm::Device::cuda : comm::Device::cpu,
          .stream = current_stream(device),
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

void reduce(at::Tensor& tensor, int dst, comm::ProcessGroup& group, Reduction reduction, CallOptions options) {
  const comm::Buffer buffer = buffer_of(tensor, "reduce: tensor");
  group.reduce(buffer, buffer, dst, reduction, options);
}
Work reduce_async(at::Tensor& tensor, int dst, comm::ProcessGroup& group, Reduction reduction, CallOptions options) {
  const comm::Buffer buffer = buffer_of(tensor, "reduce: tensor");
  return group.reduce_async(buffer, buffer, dst, reduction, options);
}

void scatter(at::Tensor& output, const at::Tensor& input, int src, comm::ProcessGroup& group, CallOptions options) {
  group.scatter(root_buffer_of(input, src, group, "scatter: input"), buffer_of(output, "scatter: output"), src,
                options);
}
Work scatter_async(at::Tensor& output, const at::Tensor& input, int src, comm::ProcessGroup& group,
                   CallOptions options) {
  return group.scatter_async(root_buffer_of(input, src, group, "scatter: input"), buffer_of(output, "scatter: output"),
                             src, options);
}

void gather(const at::Tensor& input, at::Tensor& output, int dst, comm::ProcessGroup& group, CallOptions options) {
  group.gather(buffer_of(input, "gather: input"), root_buffer_of(output, dst, group, "gather: output"), dst, options);
}
Work gather_async(const at::Tensor& input, at::Tensor& output, int dst, comm::ProcessGroup& group,
                  CallOptions options) {
  return group.gather_async(buffer_of(input, "gather: input"), root_buffer_of(output, dst, group, "gather: output"),
                            dst, options);
}

void all_to_all_single(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                       const SplitSizes& split_sizes, CallOptions options) {
  with_split_sizes(output, input, group, split_sizes, options, [&](const comm::Call& call) { group.run(call); });
}
Work all_to_all_single_async(at::Tensor& output, const at::Tensor& input, comm::ProcessGroup& group,
                             const SplitSizes& split_sizes, CallOptions options) {
  Work work;
  with_split_sizes(output, input, group, split_sizes, options,
                   [&](const comm::Call& call) { work = group.submit(call); });
  return work;
}

void ListWork::wait() {
  work_.wait();
  int64_t begin = 0;
  for (at::Tensor& output : outputs_) {
    output.detach().view(-1).copy_(flat_.narrow(0, begin, output.numel()));
    begin += output.numel();
  }
  outputs_.clear();
}

ListWork all_gather_async(std::vector<at::Tensor>& outputs, const at::Tensor& input, comm::ProcessGroup& group,
                          CallOptions options) {
  ListCall call = list_call(outputs, input, group);
  Work work = group.all_gather_uneven_async(buffer_of(input, "all_gather: input"),
                                            buffer_of(call.flat, "all_gather: outputs"), call.counts, options);
  return {std::move(work), std::move(call.flat), std::move(call.copied)};
}
void all_gather(std::vector<at::Tensor>& outputs, const at::Tensor& input, comm::ProcessGroup& group,
                CallOptions options) {
  ListCall call = list_call(outputs, input, group);
  group.all_gather_uneven(buffer_of(input, "all_gather: input"), buffer_of(call.flat, "all_gather: outputs"),
                          call.counts, options);
  ListWork({}, std::move(call.flat), std::move(call.copied)).wait();
}

void reduce_scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, comm::ProcessGroup& group,
                    Reduction reduction, CallOptions options) {
  const std::vector<int64_t> counts = counts_of_list(inputs, output, group, "reduce_scatter");
  group.reduce_scatter_uneven(buffer_of(flat_inputs(inputs), "reduce_scatter: inputs"),
                              buffer_of(output, "reduce_scatter: output"), counts, reduction, options);
}
Work reduce_scatter_async(at::Tensor& output, const std::vector<at::Tensor>& inputs, comm::ProcessGroup& group,
                          Reduction reduction, CallOptions options) {
  const std::vector<int64_t> counts = counts_of_list(inputs, output, group, "reduce_scatter");
  return group.reduce_scatter_uneven_async(buffer_of(flat_inputs(inputs), "reduce_scatter: inputs"),
                                           buffer_of(output, "reduce_scatter: output"), counts, reduction, options);
}

std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations, comm::ProcessGroup& group,
                                    CallOptions options) {
  return group.batch_async(messages_of(operations), options);
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
  add_registered_memory(memory.bytes);
  const auto release = [kept = memory.memory, bytes = memory.bytes](void*) { add_registered_memory(-bytes); };
  return at::from_blob(memory.data(), sizes, release, at::TensorOptions().dtype(type));
}

}  // namespace lockstep
