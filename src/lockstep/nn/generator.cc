#include "lockstep/nn/generator.h"

#include <torch/torch.h>

#include <algorithm>

#include "lockstep/base/rng.h"

namespace lockstep::nn {

using at::Tensor;

CachedAttention::CachedAttention(int64_t layers, int64_t max_length)
    : caches_(static_cast<size_t>(layers)), max_length_(max_length) {}

Tensor CachedAttention::attend(const Tensor& q_BNSD, const Tensor& k_BKSD, const Tensor& v_BKSD, const Site& site) {
  Cache& cache = caches_.at(static_cast<size_t>(site.layer));
  if (!cache.keys_BKSD.defined()) {
    const std::vector<int64_t> sizes = {k_BKSD.size(0), k_BKSD.size(1), max_length_, k_BKSD.size(3)};
    cache = {at::empty(sizes, k_BKSD.options()), at::empty(sizes, v_BKSD.options())};
  }
  const int64_t fresh = q_BNSD.size(2), all = length_ + fresh;
  cache.keys_BKSD.narrow(2, length_, fresh).copy_(k_BKSD);
  cache.values_BKSD.narrow(2, length_, fresh).copy_(v_BKSD);
  // Query i stands at position length_ + i and sees the keys up to there.
  const Tensor visible = at::ones({fresh, all}, q_BNSD.options().dtype(at::kBool)).tril(length_);
  return at::scaled_dot_product_attention(q_BNSD, cache.keys_BKSD.narrow(2, 0, all),
                                          cache.values_BKSD.narrow(2, 0, all), visible, /*dropout_p=*/0,
                                          /*is_causal=*/false, /*scale=*/{},
                                          /*enable_gqa=*/q_BNSD.size(1) != k_BKSD.size(1));
}

Tensor CachedAttention::positions(int64_t sequence, at::Device device) {
  return at::arange(length_, length_ + sequence, at::TensorOptions(device).dtype(at::kLong));
}

Tensor NoDropout::dropout(const Tensor& x_BSH, double /*p*/, const Site& /*site*/) {
  return x_BSH;
}

Generator::Generator(const Transformer& model)
    : model_(model), attention_(model.model().layers, model.model().sequence) {}

Tensor Generator::feed(const Tensor& tokens_BS) {
  const int64_t fresh = tokens_BS.size(1);
  if (length() + fresh > model_.model().sequence) {
    throw InvalidArgument(Problem{.field = "tokens",
                                  .value = text(length() + fresh),
                                  .rule = "must fit into model.sequence",
                                  .nearest = text(model_.model().sequence)}
                              .message());
  }
  const at::NoGradGuard no_grad;
  const Context context{{linear_, loss_, attention_, dropout_}, {}};
  const Tensor last_B1H = model_.hidden(tokens_BS, context).narrow(1, fresh - 1, 1);
  attention_.advance(fresh);
  return model_.logits(last_B1H, context).squeeze(1);
}

int64_t sample(const Tensor& logits_V, const SamplingOptions& options, int64_t draw) {
  if (options.temperature == 0) return logits_V.argmax().item<int64_t>();
  const int64_t kept = options.top_k == 0 ? logits_V.size(0) : std::min(options.top_k, logits_V.size(0));
  const auto [likeliest, tokens] = logits_V.to(at::kCPU, at::kDouble).topk(kept);
  const Tensor cumulative = (likeliest / options.temperature).softmax(0).cumsum(0);
  const double target = CounterRng(options.seed, "sample").uniform(static_cast<uint64_t>(draw));
  // The sum may round to less than 1: the last token takes what is left.
  const int64_t index = std::min((cumulative <= target).sum().item<int64_t>(), kept - 1);
  return tokens[index].item<int64_t>();
}

std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt, int64_t count,
                              const SamplingOptions& options) {
  if (prompt.empty()) throw InvalidArgument(Problem{"prompt", "\"\"", "must have at least one token", {}}.message());
  const int64_t sequence = model.model().sequence;
  std::vector<int64_t> text = prompt, unread;
  std::optional<Generator> generator;
  const auto begin_anew = [&](int64_t kept) {
    generator.emplace(model);
    unread.assign(text.end() - std::min(kept, static_cast<int64_t>(text.size())), text.end());
  };
  begin_anew(sequence);
  for (int64_t draw = 0; draw < count; ++draw) {
    if (generator->length() == sequence) begin_anew((sequence + 1) / 2);
    const Tensor logits_1V = generator->feed(at::tensor(unread, at::kLong).unsqueeze(0));
    text.push_back(sample(logits_1V[0], options, draw));
    unread = {text.back()};
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace lockstep::nn
