#include "lockstep/parallel/tensor/modules.h"

#include <torch/torch.h>

#include "lockstep/distributed/collectives.h"
#include "lockstep/parallel/tensor/linear.h"

namespace lockstep::parallel {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

mesh::Range own_range(int64_t length, const TensorGroup& group) {
  return mesh::split(length, {group.rank(), group.size()});
}

// Rank 0's values.
Tensor agreed(const Tensor& tensor, comm::ProcessGroup& group) {
  Tensor values = tensor.detach().clone();
  broadcast(values, 0, group, {.tag = "initial values"});
  return values;
}

// Slices along `dim` of every rank, put together.
Tensor gathered(const Tensor& slice, int64_t dim, int64_t length, const TensorGroup& group, std::string_view tag) {
  std::vector<int64_t> sizes = slice.sizes().vec();
  const auto own = static_cast<size_t>(dim < 0 ? dim + slice.dim() : dim);
  std::vector<Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    sizes[own] = mesh::split(length, {rank, group.size()}).size;
    parts.push_back(at::empty(sizes, slice.options()));
  }
  all_gather(parts, slice.contiguous(), group.ranks(), {.tag = tag});
  return at::cat(parts, dim);
}

class GatherOutputs : public torch::autograd::Function<GatherOutputs> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& part, int64_t length, const TensorGroup* group) {
    const mesh::Range own = own_range(length, *group);
    context->saved_data["offset"] = own.offset;
    context->saved_data["size"] = own.size;
    return gathered(part, -1, length, *group, "forward outputs");
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor part =
        gradients[0].narrow(-1, context->saved_data["offset"].toInt(), context->saved_data["size"].toInt());
    return {part, {}, {}};
  }
};

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(int64_t in, int64_t out, comm::ProcessGroup& group,
                                                   ColumnParallelOptions options)
    : group_(group), options_(options), out_(out) {
  const torch::nn::Linear whole(torch::nn::LinearOptions(in, out).bias(options.bias));
  const mesh::Range own = own_range(out, group_);
  weight = register_parameter("weight", agreed(whole->weight, group).narrow(0, own.offset, own.size).clone());
  if (options.bias) {
    bias = register_parameter("bias", agreed(whole->bias, group).narrow(0, own.offset, own.size).clone());
  }
}

Tensor ColumnParallelLinearImpl::forward(const Tensor& x) {
  const nn::Projection projection{weight, bias};
  const Tensor part = column_linears(x, {&projection, 1}, group_, "column parallel").front();
  return options_.gather_output ? GatherOutputs::apply(part, out_, &group_) : part;
}

Tensor ColumnParallelLinearImpl::whole_weight() const {
  return gathered(weight.detach(), 0, out_, group_, "whole weight");
}

RowParallelLinearImpl::RowParallelLinearImpl(int64_t in, int64_t out, comm::ProcessGroup& group,
                                             RowParallelOptions options)
    : group_(group), options_(options), in_(in) {
  const torch::nn::Linear whole(torch::nn::LinearOptions(in, out).bias(options.bias));
  const mesh::Range own = own_range(in, group_);
  weight = register_parameter(
      "weight", agreed(whole->weight, group).narrow(1, own.offset, own.size).clone(at::MemoryFormat::Contiguous));
  if (options.bias) bias = register_parameter("bias", agreed(whole->bias, group));
}

Tensor RowParallelLinearImpl::forward(const Tensor& x) {
  Tensor part = x;
  if (options_.split_input) {
    const mesh::Range own = own_range(in_, group_);
    part = enter_split(x, group_, "row parallel input").narrow(-1, own.offset, own.size);
  }
  return row_linear(part, {weight, bias}, group_, "row parallel");
}

Tensor RowParallelLinearImpl::whole_weight() const {
  return gathered(weight.detach(), 1, in_, group_, "whole weight");
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(int64_t vocab, int64_t hidden, comm::ProcessGroup& group)
    : group_(group), vocab_(vocab) {
  const torch::nn::Embedding whole(vocab, hidden);
  const int64_t slice = vocabulary_slice(vocab, group.size());
  const Tensor padded = at::constant_pad_nd(agreed(whole->weight, group), {0, 0, 0, slice * group.size() - vocab});
  weight = register_parameter("weight", padded.narrow(0, group.rank() * slice, slice).clone());
}

Tensor VocabParallelEmbeddingImpl::forward(const Tensor& tokens) {
  return vocab_parallel_embedding(tokens, weight, vocab_, group_);
}

}  // namespace lockstep::parallel
