#include "lockstep/nn/local_seams.h"

#include <torch/torch.h>

#include "lockstep/base/rng.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {

using at::Tensor;

std::vector<Tensor> LocalLinear::linears(const Tensor& x, std::span<const Projection> projections, Split /*split*/,
                                         const Site& /*site*/) {
  std::vector<Tensor> outputs;
  for (const Projection& projection : projections) {
    outputs.push_back(nn::linear(x, projection, deferred_));
  }
  return outputs;
}

Tensor LocalLoss::embed(const Tensor& tokens_BS, const Tensor& table_VH, const Tensor& positions_SH,
                        const Site& /*site*/) {
  const Tensor tokens_BSH = at::embedding(table_VH, tokens_BS);
  return positions_SH.defined() ? tokens_BSH + positions_SH : tokens_BSH;
}

Tensor LocalLoss::token_losses(const Tensor& hidden_BSH, const Tensor& head_VH, const Tensor& targets_BS,
                               const Site& /*site*/) {
  Tensor logits_TV = linear(hidden_BSH, {head_VH, {}}, deferred_).flatten(0, 1);
  if (at::isReducedFloatingType(logits_TV.scalar_type())) logits_TV = logits_TV.to(at::kFloat);
  return at::cross_entropy_loss(logits_TV, targets_BS.flatten(), {}, at::Reduction::None, kIgnoredTarget)
      .view_as(targets_BS);
}

Tensor LocalAttention::attend(const Tensor& q_BNSD, const Tensor& k_BKSD, const Tensor& v_BKSD, const Site& /*site*/) {
  const bool grouped = q_BNSD.size(1) != k_BKSD.size(1);
  return at::scaled_dot_product_attention(q_BNSD, k_BKSD, v_BKSD, /*attn_mask=*/{}, /*dropout_p=*/0,
                                          /*is_causal=*/true, /*scale=*/{}, /*enable_gqa=*/grouped);
}

Tensor LocalAttention::positions(int64_t sequence, at::Device device) {
  return at::arange(sequence, at::TensorOptions(device).dtype(at::kLong));
}

Tensor keyed_dropout(const Tensor& x_BSH, double p, const Site& site, uint64_t seed, SequencePart part) {
  const CounterRng rng(seed, text("dropout.", site.layer, ".", site.name, ".", site.microbatch.step));
  const int64_t sequences = x_BSH.size(0), run = x_BSH.size(1) * x_BSH.size(2), hidden = x_BSH.size(2);
  Tensor factor_BSH = at::empty(x_BSH.sizes(), at::kFloat);
  float* out = factor_BSH.mutable_data_ptr<float>();
  const float kept = static_cast<float>(1 / (1 - p));
  for (int64_t b = 0; b < sequences; ++b) {
    const int64_t first = ((site.microbatch.first_sample + b) * part.of + part.first) * hidden;
    for (int64_t i = 0; i < run; ++i) *out++ = rng.uniform(static_cast<uint64_t>(first + i)) < p ? 0 : kept;
  }
  return x_BSH * factor_BSH.to(x_BSH.options());
}

Tensor LocalDropout::dropout(const Tensor& x_BSH, double p, const Site& site) {
  return keyed_dropout(x_BSH, p, site, seed_, {.of = x_BSH.size(1)});
}

}  // namespace lockstep::nn
