#include "lockstep/parallel/tensor/linear.h"

#include <torch/torch.h>

namespace lockstep::parallel {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// Of an exchange that backward makes: with whom, and its name.
void keep(AutogradContext* context, const TensorGroup* group, const std::string& tag) {
  context->saved_data["group"] = reinterpret_cast<int64_t>(group);
  context->saved_data["tag"] = "backward " + tag;
}

const TensorGroup& group_of(AutogradContext* context) {
  return *reinterpret_cast<const TensorGroup*>(context->saved_data["group"].toInt());
}

std::string tag_of(AutogradContext* context) {
  return context->saved_data["tag"].toStringRef();
}

// [..., H] -> [tokens, H]
Tensor as_matrix(const Tensor& x) {
  return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
}

class EnterSplit : public torch::autograd::Function<EnterSplit> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const TensorGroup* group, const std::string& tag) {
    keep(context, group, tag);
    const Tensor entered = group->enter(x, "forward " + tag);
    return entered.is_same(x) ? x.view_as(x) : entered;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // A copy: the sum is made in place, and others may hold this gradient.
    return {group_of(context).leave(gradients[0].clone(at::MemoryFormat::Contiguous), tag_of(context)), {}, {}};
  }
};

class LeaveSplit : public torch::autograd::Function<LeaveSplit> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& partial, const TensorGroup* group,
                        const std::string& tag) {
    keep(context, group, tag);
    return group->leave(partial.clone(at::MemoryFormat::Contiguous), "forward " + tag);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {group_of(context).enter(gradients[0], tag_of(context)), {}, {}};
  }
};

// Gradients of weight [O,H] and bias [O] for y = x weight^T + bias, from y's.
Tensor weight_gradient(const Tensor& gradient, const Tensor& x) {
  return as_matrix(gradient).t().matmul(as_matrix(x));
}
Tensor bias_gradient(const Tensor& gradient) {
  return as_matrix(gradient).sum(0);
}

// Parameters are `count` weights and as many biases, or none.
class ColumnLinears : public torch::autograd::Function<ColumnLinears> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList parameters, size_t count,
                               const TensorGroup* group, const std::string& tag) {
    const Tensor entered = group->enter(x, "forward " + tag);
    const bool has_bias = parameters.size() > count;
    variable_list outputs, kept = {x};
    for (size_t i = 0; i < count; ++i) {
      outputs.push_back(at::linear(entered, parameters[i], has_bias ? parameters[count + i] : Tensor()));
      kept.push_back(parameters[i]);
    }
    keep(context, group, tag);
    context->saved_data["has_bias"] = has_bias;
    context->save_for_backward(kept);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const TensorGroup& group = group_of(context);
    const variable_list kept = context->get_saved_variables();
    const size_t count = gradients.size();
    const bool has_bias = context->saved_data["has_bias"].toBool(), input_wanted = context->needs_input_grad(0);
    variable_list result(1 + (has_bias ? 2 : 1) * count + 3);

    Exchange entered = group.start_enter(kept[0], tag_of(context));
    std::optional<Exchange> sum;
    if (input_wanted) sum.emplace(group.start_leave(input_gradient(gradients, kept), tag_of(context)));
    const Tensor x = entered.wait();
    for (size_t i = 0; i < count; ++i) {
      if (context->needs_input_grad(1 + i)) result[1 + i] = weight_gradient(gradients[i], x);
      if (has_bias && context->needs_input_grad(1 + count + i)) result[1 + count + i] = bias_gradient(gradients[i]);
    }
    if (sum) result[0] = sum->wait();
    return result;
  }

 private:
  // This rank's part of it, the same shape as the entered x. kept[1 + i] is the weight of gradients[i].
  static Tensor input_gradient(const variable_list& gradients, const variable_list& kept) {
    Tensor sum = as_matrix(gradients[0]).matmul(kept[1]);
    for (size_t i = 1; i < gradients.size(); ++i) sum.addmm_(as_matrix(gradients[i]), kept[1 + i]);
    std::vector<int64_t> sizes = gradients[0].sizes().vec();
    sizes.back() = kept[1].size(1);
    return sum.view(sizes);
  }
};

class RowLinear : public torch::autograd::Function<RowLinear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const TensorGroup* group, const std::string& tag) {
    keep(context, group, tag);
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    Tensor sum = group->leave(at::linear(x, weight), "forward " + tag);
    if (bias) sum.add_(*bias);
    return sum;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list kept = context->get_saved_variables();
    const Tensor &x = kept[0], &weight = kept[1], &outer = gradients[0];
    Exchange entered = group_of(context).start_enter(outer, tag_of(context));
    variable_list result(5);
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) result[2] = bias_gradient(outer);
    const Tensor inner = entered.wait();
    if (context->needs_input_grad(0)) result[0] = inner.matmul(weight);
    if (context->needs_input_grad(1)) result[1] = weight_gradient(inner, x);
    return result;
  }
};

}  // namespace

Tensor enter_split(const Tensor& x, const TensorGroup& group, const std::string& tag) {
  return EnterSplit::apply(x, &group, tag);
}

Tensor leave_split(const Tensor& partial, const TensorGroup& group, const std::string& tag) {
  return LeaveSplit::apply(partial, &group, tag);
}

std::vector<Tensor> column_linears(const Tensor& x, std::span<const nn::Projection> projections,
                                   const TensorGroup& group, const std::string& tag) {
  std::vector<Tensor> parameters;
  for (const nn::Projection& projection : projections) parameters.push_back(projection.weight);
  for (const nn::Projection& projection : projections) {
    if (projection.bias.defined()) parameters.push_back(projection.bias);
  }
  LOCKSTEP_CHECK(parameters.size() % projections.size() == 0, tag, ": all or none must have a bias");
  return ColumnLinears::apply(x, at::TensorList(parameters), projections.size(), &group, tag);
}

Tensor row_linear(const Tensor& x, const nn::Projection& projection, const TensorGroup& group, const std::string& tag) {
  const std::optional<Tensor> bias = projection.bias.defined() ? std::optional(projection.bias) : std::nullopt;
  return RowLinear::apply(x, projection.weight, bias, &group, tag);
}

}  // namespace lockstep::parallel
