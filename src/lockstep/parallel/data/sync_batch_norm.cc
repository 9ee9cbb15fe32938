#include "lockstep/parallel/data/sync_batch_norm.h"

#include <torch/torch.h>

#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [C] -> [1, C, 1, ...] with as many dims as the input.
at::Tensor by_channel(const at::Tensor& values_C, int64_t dims) {
  std::vector<int64_t> sizes(static_cast<size_t>(dims), 1);
  sizes[1] = values_C.numel();
  return values_C.view(sizes);
}

std::vector<int64_t> all_but_channel(int64_t dims) {
  std::vector<int64_t> result{0};
  for (int64_t d = 2; d < dims; ++d) result.push_back(d);
  return result;
}

struct Moments {
  at::Tensor mean_C, squares_C;  // squares: sum of squared deviations
  double count = 0;              // values per channel
};

// Combines every rank's moments, in rank order on every rank.
Moments global_moments(const at::Tensor& input, comm::ProcessGroup& group) {
  const int64_t channels = input.size(1), local_count = channels == 0 ? 0 : input.numel() / channels;
  const auto dims = all_but_channel(input.dim());
  at::Tensor local = at::zeros({2 * channels + 1}, input.options());
  if (local_count > 0) {
    const at::Tensor mean = input.mean(dims);
    local.narrow(0, 0, channels).copy_(mean);
    local.narrow(0, channels, channels).copy_((input - by_channel(mean, input.dim())).square().sum(dims));
    local[2 * channels].fill_(static_cast<double>(local_count));
  }
  at::Tensor all = at::empty({group.size(), 2 * channels + 1}, input.options());
  all_gather_into_tensor(all, local, group, {.tag = "batch norm moments"});

  Moments total{at::zeros({channels}, input.options()), at::zeros({channels}, input.options()), 0};
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    const double count = all[rank][2 * channels].item<double>();
    if (count == 0) continue;
    const at::Tensor delta = all[rank].narrow(0, 0, channels) - total.mean_C,
                     squares = all[rank].narrow(0, channels, channels);
    const double sum = total.count + count;
    total.squares_C += squares + delta.square() * (total.count * count / sum);
    total.mean_C += delta * (count / sum);
    total.count = sum;
  }
  return total;
}

// Normalises with global moments; its backward sums over ranks what every sample's gradient depends on.
struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& mean_C,
                            const at::Tensor& inverse_std_C, double count, comm::ProcessGroup* group) {
    const at::Tensor normal = (input - by_channel(mean_C, input.dim())) * by_channel(inverse_std_C, input.dim());
    context->save_for_backward({normal, inverse_std_C});
    context->saved_data["count"] = count;
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    return normal;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &normal = saved[0], &inverse_std_C = saved[1], gradient = gradients[0];
    auto& group = *reinterpret_cast<comm::ProcessGroup*>(context->saved_data["group"].toInt());
    const double count = context->saved_data["count"].toDouble();
    const int64_t channels = normal.size(1), dims = normal.dim();

    at::Tensor sums = at::cat({gradient.sum(all_but_channel(dims)), (gradient * normal).sum(all_but_channel(dims))});
    all_reduce(sums, group, Reduction::sum, {.tag = "batch norm gradient"});
    const at::Tensor means = sums / count;
    const at::Tensor result = (gradient - by_channel(means.narrow(0, 0, channels), dims) -
                               normal * by_channel(means.narrow(0, channels, channels), dims)) *
                              by_channel(inverse_std_C, dims);
    return {result, {}, {}, {}, {}};
  }
};

}  // namespace

SyncBatchNorm::SyncBatchNorm(int64_t channels, comm::ProcessGroup& group, SyncBatchNormOptions options)
    : group_(group), options_(options) {
  weight = register_parameter("weight", torch::ones({channels}));
  bias = register_parameter("bias", torch::zeros({channels}));
  running_mean = register_buffer("running_mean", torch::zeros({channels}));
  running_var = register_buffer("running_var", torch::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", torch::zeros({}, torch::kLong));
}

at::Tensor SyncBatchNorm::forward(const at::Tensor& input_NCx) {
  const int64_t dims = input_NCx.dim();
  if (dims < 2 || input_NCx.size(1) != weight.numel()) {
    throw InvalidArgument(
        text("SyncBatchNorm: input has sizes ", input_NCx.sizes(), "; must be [N, C, ...] with C = ", weight.numel()));
  }
  if (!is_training()) {
    const at::Tensor inverse_std = (running_var + options_.eps).rsqrt();
    return (input_NCx - by_channel(running_mean, dims)) * by_channel(inverse_std * weight, dims) +
           by_channel(bias, dims);
  }
  const Moments moments = [&] {
    const torch::NoGradGuard no_grad;
    return global_moments(input_NCx, group_);
  }();
  if (moments.count < 2)
    throw InvalidArgument(
        "SyncBatchNorm: all ranks together hold fewer than two values per channel; give more samples");
  const at::Tensor variance = moments.squares_C / moments.count;
  {
    const torch::NoGradGuard no_grad;
    running_mean.lerp_(moments.mean_C, options_.momentum);
    running_var.lerp_(moments.squares_C / (moments.count - 1), options_.momentum);
    num_batches_tracked += 1;
  }
  const at::Tensor normal =
      Normalise::apply(input_NCx, moments.mean_C, (variance + options_.eps).rsqrt(), moments.count, &group_);
  return normal * by_channel(weight, dims) + by_channel(bias, dims);
}

}  // namespace lockstep::parallel
