#include "lockstep/parallel/tensor/linear.h"

#include <torch/torch.h>

#include "lockstep/nn/linear.h"

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

void keep(AutogradContext* context, const TensorGroup* group, const std::string& tag, nn::DeferredWeights* deferred) {
  keep(context, group, tag);
  context->saved_data["deferred"] = reinterpret_cast<int64_t>(deferred);
}

// Where this backward puts off gradients of weights; null: nowhere.
nn::DeferredWeights* deferring(AutogradContext* context) {
  auto* deferred = reinterpret_cast<nn::DeferredWeights*>(context->saved_data["deferred"].toInt());
  return deferred != nullptr && deferred->deferring() ? deferred : nullptr;
}

std::string put_off_tag(AutogradContext* context) {
  return "put-off " + tag_of(context);
}

// Parameters are as many weights as outputs and as many biases, or none.
class ColumnLinears : public torch::autograd::Function<ColumnLinears> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList parameters, size_t count,
                               const TensorGroup* group, const std::string& tag, nn::DeferredWeights* deferred) {
    const Tensor entered = group->enter(x, "forward " + tag);
    const bool has_bias = parameters.size() > count;
    variable_list outputs, kept = {x};
    for (size_t i = 0; i < count; ++i) {
      outputs.push_back(at::linear(entered, parameters[i], has_bias ? parameters[count + i] : Tensor()));
    }
    kept.insert(kept.end(), parameters.begin(), parameters.end());
    keep(context, group, tag, deferred);
    context->save_for_backward(kept);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const TensorGroup& group = group_of(context);
    const variable_list kept = context->get_saved_variables();
    const bool input_wanted = context->needs_input_grad(0);
    variable_list result(kept.size() + 4);
    if (nn::DeferredWeights* deferred = deferring(context)) {
      deferred->put_off(work_of(context, gradients, kept));
      if (input_wanted) result[0] = group.leave(input_gradient(gradients, kept), tag_of(context));
      return result;
    }

    Exchange entered = group.start_enter(kept[0], tag_of(context));
    std::optional<Exchange> sum;
    if (input_wanted) sum.emplace(group.start_leave(input_gradient(gradients, kept), tag_of(context)));
    const Tensor x = entered.wait();
    for (size_t i = 1; i < kept.size(); ++i) {
      if (context->needs_input_grad(i)) result[i] = parameter_gradient(i, gradients, x);
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

  // Of kept[i], i from 1; x has entered.
  static Tensor parameter_gradient(size_t i, const variable_list& gradients, const Tensor& x) {
    const size_t count = gradients.size();
    return i <= count ? nn::weight_gradient(gradients[i - 1], x) : nn::bias_gradient(gradients[i - 1 - count]);
  }

  static nn::WeightWork work_of(AutogradContext* context, const variable_list& gradients, const variable_list& kept) {
    nn::WeightWork work{.kept = gradients};
    work.kept.push_back(kept[0].detach());
    std::vector<size_t> wanted;
    for (size_t i = 1; i < kept.size(); ++i) {
      if (!context->needs_input_grad(i)) continue;
      work.parameters.push_back(kept[i]);
      wanted.push_back(i);
    }
    work.start = [wanted, group = &group_of(context), tag = put_off_tag(context)](variable_list kept_now) {
      Exchange entered = group->start_enter(kept_now.back(), tag);
      kept_now.pop_back();
      return [wanted, gradients = std::move(kept_now), entered]() mutable {
        const Tensor x = entered.wait();
        variable_list result;
        for (const size_t i : wanted) result.push_back(parameter_gradient(i, gradients, x));
        return result;
      };
    };
    return work;
  }
};

class RowLinear : public torch::autograd::Function<RowLinear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const TensorGroup* group, const std::string& tag,
                        nn::DeferredWeights* deferred) {
    keep(context, group, tag, deferred);
    context->save_for_backward({x, weight, bias.value_or(Tensor())});
    Tensor sum = group->leave(at::linear(x, weight), "forward " + tag);
    if (bias) sum.add_(*bias);
    return sum;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list kept = context->get_saved_variables();
    const Tensor &x = kept[0], &weight = kept[1], &bias = kept[2], &outer = gradients[0];
    const bool bias_wanted = bias.defined() && context->needs_input_grad(2);
    variable_list result(6);
    if (nn::DeferredWeights* deferred = deferring(context)) {
      deferred->put_off(work_of(context, outer, kept));
      if (context->needs_input_grad(0)) {
        result[0] = group_of(context).enter(outer, tag_of(context)).matmul(weight);
      }
      return result;
    }

    Exchange entered = group_of(context).start_enter(outer, tag_of(context));
    if (bias_wanted) result[2] = nn::bias_gradient(outer);
    const Tensor inner = entered.wait();
    if (context->needs_input_grad(0)) result[0] = inner.matmul(weight);
    if (context->needs_input_grad(1)) result[1] = nn::weight_gradient(inner, x);
    return result;
  }

 private:
  static nn::WeightWork work_of(AutogradContext* context, const Tensor& outer, const variable_list& kept) {
    nn::WeightWork work{.kept = {outer, kept[0].detach()}};
    const bool of_weight = context->needs_input_grad(1), of_bias = kept[2].defined() && context->needs_input_grad(2);
    if (of_weight) work.parameters.push_back(kept[1]);
    if (of_bias) work.parameters.push_back(kept[2]);
    work.start = [of_weight, of_bias, group = &group_of(context),
                  tag = put_off_tag(context)](const variable_list& kept_now) {
      return [of_weight, of_bias, kept_now, entered = group->start_enter(kept_now[0], tag)]() mutable {
        variable_list result;
        const Tensor inner = entered.wait();
        if (of_weight) result.push_back(nn::weight_gradient(inner, kept_now[1]));
        if (of_bias) result.push_back(nn::bias_gradient(kept_now[0]));
        return result;
      };
    };
    return work;
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
                                   const TensorGroup& group, const std::string& tag, nn::DeferredWeights* deferred) {
  std::vector<Tensor> parameters;
  for (const nn::Projection& projection : projections) parameters.push_back(projection.weight);
  for (const nn::Projection& projection : projections) {
    if (projection.bias.defined()) parameters.push_back(projection.bias);
  }
  LOCKSTEP_CHECK(parameters.size() % projections.size() == 0, tag, ": all or none must have a bias");
  return ColumnLinears::apply(x, at::TensorList(parameters), projections.size(), &group, tag, deferred);
}

Tensor row_linear(const Tensor& x, const nn::Projection& projection, const TensorGroup& group, const std::string& tag,
                  nn::DeferredWeights* deferred) {
  const std::optional<Tensor> bias = projection.bias.defined() ? std::optional(projection.bias) : std::nullopt;
  return RowLinear::apply(x, projection.weight, bias, &group, tag, deferred);
}

}  // namespace lockstep::parallel
