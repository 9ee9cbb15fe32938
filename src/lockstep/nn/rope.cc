#include "lockstep/nn/rope.h"

#include <torch/torch.h>

namespace lockstep::nn {

using at::Tensor;

namespace {

Tensor turn(const Tensor& x_BNSD, const Tensor& cos, const Tensor& sin) {
  const int64_t half = x_BNSD.size(-1) / 2;
  const Tensor first = x_BNSD.narrow(-1, 0, half), second = x_BNSD.narrow(-1, half, half);
  Tensor turned = at::empty_like(x_BNSD);
  turned.narrow(-1, 0, half).copy_(first * cos).addcmul_(second, sin, -1);
  turned.narrow(-1, half, half).copy_(second * cos).addcmul_(first, sin);
  return turned;
}

// The gradient of a rotation is the rotation back: nothing but the tables is kept for it.
class Rotation : public torch::autograd::Function<Rotation> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x_BNSD, const Tensor& cos,
                        const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return turn(x_BNSD, cos, sin);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto tables = context->get_saved_variables();
    return {turn(gradients[0], tables[0], -tables[1]), {}, {}};
  }
};

}  // namespace

RopeTables make_rope_tables(int64_t sequence, int64_t head_size, double theta, const at::TensorOptions& options) {
  const auto in_double = options.dtype(at::kDouble);
  const Tensor frequencies = at::pow(theta, at::arange(0, head_size, 2, in_double) / -static_cast<double>(head_size));
  const Tensor angles = at::outer(at::arange(sequence, in_double), frequencies);
  return {angles.cos().to(options), angles.sin().to(options)};
}

Tensor apply_rope(const Tensor& x_BNSD, const RopeTables& tables) {
  return Rotation::apply(x_BNSD, tables.cos, tables.sin);
}

}  // namespace lockstep::nn
