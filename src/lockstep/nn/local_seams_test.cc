#include "lockstep/nn/local_seams.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/nn/rope.h"

namespace lockstep::nn {
namespace {

using at::Tensor;

// Micro-batches whose tokens have losses of our choosing: with one hidden unit of 1 and two words, a token's loss is
// log(1 + exp(-margin)) where margin is the target's lead.
struct TokensWithLosses {
  Tensor hidden_BSH, head_VH = at::tensor({1.0, 0.0}, at::kDouble).unsqueeze(1), targets_BS;
};

TokensWithLosses tokens_with_losses(const std::vector<double>& losses, int64_t length) {
  TokensWithLosses made{.hidden_BSH = at::zeros({1, length, 1}, at::kDouble),
                        .targets_BS = at::full({1, length}, kIgnoredTarget, at::kLong)};
  for (size_t i = 0; i < losses.size(); ++i) {
    made.hidden_BSH[0][i][0] = -std::log(std::expm1(losses[i]));
    made.targets_BS[0][i] = 0;
  }
  made.hidden_BSH.requires_grad_();
  return made;
}

double loss_sum(const TokensWithLosses& tokens) {
  return LocalLoss().token_losses(tokens.hidden_BSH, tokens.head_VH, tokens.targets_BS, {}).sum().item<double>();
}

// GRAD-14 and GRAD-15: 1 token with loss 4 and 3 tokens with loss 1 are 7 / 4 = 1.75, however they are dealt; the mean
// of the parts' means would be 2.5.
TEST(TokenLosses, WeighTokensEqually) {
  const double apart = loss_sum(tokens_with_losses({4}, 5)) + loss_sum(tokens_with_losses({1, 1, 1}, 5));
  const double together = loss_sum(tokens_with_losses({4, 1, 1, 1}, 5));
  EXPECT_NEAR(apart / 4, 1.75, 1e-12);
  EXPECT_NEAR(together / 4, 1.75, 1e-12);
}

TEST(TokenLosses, APartWithoutTokensContributesZero) {
  const TokensWithLosses none = tokens_with_losses({}, 5);
  EXPECT_NEAR((loss_sum(none) + loss_sum(tokens_with_losses({1, 1, 1}, 5))) / 3, 1, 1e-12);
  LocalLoss().token_losses(none.hidden_BSH, none.head_VH, none.targets_BS, {}).sum().backward();
  EXPECT_TRUE(at::equal(none.hidden_BSH.grad(), at::zeros_like(none.hidden_BSH)));
}

TEST(Attention, IsCausalSoftmaxWithGroupedHeads) {
  torch::manual_seed(1);
  for (const int64_t kv_heads : {1, 2, 4}) {
    const auto random = [](int64_t heads) { return at::randn({2, heads, 5, 8}, at::kDouble).requires_grad_(); };
    const Tensor q = random(4), k = random(kv_heads), v = random(kv_heads);
    const Tensor result = LocalAttention().attend(q, k, v, {});
    const Tensor weights = at::randn_like(result);
    const auto got = torch::autograd::grad({(result * weights).sum()}, {q, k, v});

    const int64_t group = 4 / kv_heads;
    const Tensor k_all = k.repeat_interleave(group, 1), v_all = v.repeat_interleave(group, 1);
    const Tensor hidden_keys = at::ones({5, 5}, at::kBool).triu(1);
    const Tensor scores = (q.matmul(k_all.mT()) / std::sqrt(8.0)).masked_fill(hidden_keys, -INFINITY);
    const Tensor expected = scores.softmax(-1).matmul(v_all);
    const auto expected_gradients = torch::autograd::grad({(expected * weights).sum()}, {q, k, v});
    EXPECT_TRUE(at::allclose(result, expected, 0, 1e-12)) << kv_heads;
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(got[i], expected_gradients[i], 0, 1e-11)) << kv_heads;
  }
}

TEST(Dropout, KeepsTheMeanAndScalesTheRest) {
  const Tensor x = at::ones({8, 32, 64}).requires_grad_();
  const Tensor y = LocalDropout(/*seed=*/1).dropout(x, 0.25, {0, {}, "ffn"});
  const Tensor dropped = y == 0;
  EXPECT_NEAR(dropped.to(at::kFloat).mean().item<double>(), 0.25, 0.02);
  EXPECT_TRUE(at::equal(y.masked_select(~dropped), at::full({(~dropped).sum().item<int64_t>()}, 1 / 0.75f)));
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y));
}

TEST(Dropout, MasksDifferBySite) {
  LocalDropout dropout(/*seed=*/1);
  const Tensor x = at::ones({2, 8, 16});
  const Tensor first = dropout.dropout(x, 0.5, {0, {}, "ffn"});
  EXPECT_TRUE(at::equal(first, dropout.dropout(x, 0.5, {0, {}, "ffn"})));
  EXPECT_FALSE(at::equal(first, dropout.dropout(x, 0.5, {1, {}, "ffn"})));
  EXPECT_FALSE(at::equal(first, dropout.dropout(x, 0.5, {0, {}, "attention"})));
  EXPECT_FALSE(at::equal(first, LocalDropout(/*seed=*/2).dropout(x, 0.5, {0, {}, "ffn"})));
}

TEST(Rope, DependsOnDistanceAloneAndItsGradientTurnsBack) {
  torch::manual_seed(1);
  const RopeTables tables = make_rope_tables(16, 8, 10000, at::TensorOptions(at::kDouble));
  const Tensor q = at::randn({1, 1, 1, 8}, at::kDouble), k = at::randn({1, 1, 1, 8}, at::kDouble);
  const Tensor all_q = apply_rope(q.expand({1, 1, 16, 8}), tables), all_k = apply_rope(k.expand({1, 1, 16, 8}), tables);
  const Tensor scores = all_q.matmul(all_k.mT())[0][0];
  for (int64_t distance = 0; distance < 16; ++distance) {
    const Tensor diagonal = scores.diagonal(-distance);
    EXPECT_TRUE(at::allclose(diagonal, diagonal[0].expand_as(diagonal), 0, 1e-12)) << distance;
  }

  const Tensor x = at::randn({2, 3, 16, 8}, at::kDouble).requires_grad_();
  const Tensor weights = at::randn_like(x);
  apply_rope(x, tables).backward(apply_rope(weights, tables));
  EXPECT_TRUE(at::allclose(x.grad(), weights, 0, 1e-12));
}

}  // namespace
}  // namespace lockstep::nn
