#include "lockstep/nn/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/nn/local_seams.h"

namespace lockstep::nn {
namespace {

using at::Tensor;

spec::ModelSpec small(const std::string& preset) {
  spec::ModelSpec model = spec::preset(preset);
  model.layers = 2;
  model.hidden = 32;
  model.ffn_hidden = 48;
  model.vocab = 40;
  model.sequence = 12;
  return model;
}

class TransformerTest : public testing::TestWithParam<std::string> {
 protected:
  Context context(MicrobatchContext microbatch = {}) { return {seams_.seams(), microbatch}; }
  Tensor random_tokens(int64_t batch, int64_t sequence) {
    torch::manual_seed(3);
    return at::randint(model_.vocab, {batch, sequence}, at::kLong);
  }
  std::vector<Tensor> gradients() {
    std::vector<Tensor> gradients;
    for (const Parameter& parameter : transformer_.parameter_list())
      gradients.push_back(parameter.tensor.grad().clone());
    transformer_.zero_grad();
    return gradients;
  }

  spec::ModelSpec model_ = small(GetParam());
  Transformer transformer_{model_, /*seed=*/1, {.dtype = at::kDouble}};
  LocalSeams seams_{/*seed=*/1};
};

INSTANTIATE_TEST_SUITE_P(Families, TransformerTest, testing::Values("gpt-tiny", "llama-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

TEST_P(TransformerTest, NamedParametersAreTheList) {
  std::vector<std::string> listed, named;
  for (const Parameter& parameter : transformer_.parameter_list()) listed.push_back(parameter.spec.name);
  for (const auto& item : transformer_.named_parameters()) {
    named.push_back(item.key());
    EXPECT_TRUE(item.value().is_same(transformer_.parameter_list()[named.size() - 1].tensor));
  }
  EXPECT_EQ(listed, named);
}

TEST_P(TransformerTest, LaterTokensDoNotChangeEarlierLogits) {
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(2, 12);
  Tensor changed = tokens.clone();
  changed.narrow(1, 7, 5).add_(1).remainder_(model_.vocab);
  const Tensor before = transformer_.logits(transformer_.hidden(tokens, context()), context());
  const Tensor after = transformer_.logits(transformer_.hidden(changed, context()), context());
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 7), after.narrow(1, 0, 7), 0, 1e-12));
  EXPECT_FALSE(at::allclose(before.narrow(1, 7, 5), after.narrow(1, 7, 5), 0, 1e-3));
}

TEST_P(TransformerTest, LossIsTheCrossEntropyOfTheLogits) {
  const Tensor tokens = random_tokens(2, 12), targets = tokens.roll(1, 1);
  const Tensor log_probabilities =
      transformer_.logits(transformer_.hidden(tokens, context()), context()).log_softmax(-1);
  const Tensor expected = -log_probabilities.gather(-1, targets.unsqueeze(-1)).sum();
  EXPECT_NEAR(transformer_.loss_sum(tokens, targets, context()).item<double>(), expected.item<double>(), 1e-10);
}

// The same gradients whole, in micro-batches of one, and with ignored targets dealt unevenly over them.
TEST_P(TransformerTest, SumsOverMicrobatchesAreTheWhole) {
  const Tensor tokens = random_tokens(4, 12);
  Tensor targets = tokens.roll(-1, 1);
  targets[0].fill_(kIgnoredTarget);
  targets[1].narrow(0, 1, 11).fill_(kIgnoredTarget);
  const double valid = static_cast<double>(count_valid(targets));
  EXPECT_EQ(valid, 1 + 2 * 12);

  const Tensor whole = transformer_.loss_sum(tokens, targets, context()) / valid;
  whole.backward();
  const std::vector<Tensor> whole_gradients = gradients();
  double sum = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const Tensor part = transformer_.loss_sum(tokens.narrow(0, i, 1), targets.narrow(0, i, 1), context()) / valid;
    part.backward();
    sum += part.item<double>();
  }
  EXPECT_NEAR(sum, whole.item<double>(), 1e-12);
  const std::vector<Tensor> summed_gradients = gradients();
  for (size_t i = 0; i < whole_gradients.size(); ++i) {
    EXPECT_TRUE(at::allclose(summed_gradients[i], whole_gradients[i], 1e-9, 1e-12))
        << transformer_.parameter_list()[i].spec.name;
  }
}

TEST_P(TransformerTest, WithoutValidTokensLossAndGradientsAreZero) {
  const Tensor tokens = random_tokens(2, 12);
  const Tensor loss = transformer_.loss_sum(tokens, at::full_like(tokens, kIgnoredTarget), context());
  loss.backward();
  EXPECT_EQ(loss.item<double>(), 0);
  for (const Tensor& gradient : gradients()) EXPECT_EQ(gradient.abs().max().item<double>(), 0);
}

// A stage holds some layers: running two stages one after the other is running the model.
TEST_P(TransformerTest, PartsOfTheListMakeStages) {
  const at::NoGradGuard no_grad;
  std::vector<Parameter> first, second;
  for (const Parameter& parameter : transformer_.parameter_list()) {
    const std::string& name = parameter.spec.name;
    const bool early = name.starts_with("embed.") || name.starts_with("layers.0.");
    if (early) first.push_back(parameter);
    if (!early || name == "embed.tokens.weight") second.push_back(parameter);
  }
  const Transformer front(model_, first), back(model_, second);
  const Tensor tokens = random_tokens(2, 12);
  const Tensor hidden = back.block(1, front.block(0, front.embed(tokens, context()), context()), context());
  EXPECT_TRUE(at::equal(back.logits(hidden, context()),
                        transformer_.logits(transformer_.hidden(tokens, context()), context())));
}

TEST_P(TransformerTest, DropoutFollowsSamplesNotMicrobatches) {
  model_.dropout = 0.2;
  const Transformer transformer(model_, transformer_.parameter_list());
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(4, 12);
  const Tensor whole = transformer.hidden(tokens, context({.step = 5}));
  const Tensor last = transformer.hidden(tokens.narrow(0, 3, 1), context({.index = 1, .step = 5, .first_sample = 3}));
  EXPECT_TRUE(at::allclose(last, whole.narrow(0, 3, 1), 0, 1e-12));
  EXPECT_FALSE(at::allclose(transformer.hidden(tokens, context({.step = 6})), whole, 0, 1e-3));
}

TEST_P(TransformerTest, DropoutIsForTrainingOnly) {
  model_.dropout = 0.2;
  Transformer transformer(model_, transformer_.parameter_list());
  transformer.eval();
  const at::NoGradGuard no_grad;
  const Tensor tokens = random_tokens(1, 12);
  EXPECT_TRUE(at::equal(transformer.hidden(tokens, context()), transformer_.hidden(tokens, context())));
}

// Every mode, with dropout: the gradients of two micro-batches have the bits of no recomputation.
TEST_P(TransformerTest, RecomputationChangesNoBit) {
  model_.dropout = 0.2;
  model_.layers = 5;
  Transformer transformer(model_, /*seed=*/1);
  const Tensor tokens = random_tokens(2, 12), targets = tokens.roll(-1, 1);
  int reruns = 0;
  const auto gradients_with = [&](spec::Recompute mode) {
    transformer.zero_grad();
    reruns = 0;
    for (int index = 0; index < 2; ++index) {
      Context with = context({.index = index, .step = 3, .first_sample = 2 * index});
      with.recomputation = {mode, [&] { return ++reruns, nullptr; }};
      transformer.loss_sum(tokens, targets, with).backward();
    }
    std::vector<Tensor> gradients;
    for (const Parameter& parameter : transformer.parameter_list()) gradients.push_back(parameter.tensor.grad());
    return gradients;
  };
  const std::vector<Tensor> plain = gradients_with(spec::Recompute::none);
  EXPECT_EQ(reruns, 0);
  // Segments that run again, of 5 layers: each; all but the last of 2 + 2 + 1; the core of each.
  for (const auto& [mode, segments] : {std::pair{spec::Recompute::full, 5}, std::pair{spec::Recompute::sqrt, 2},
                                       std::pair{spec::Recompute::selective, 5}}) {
    const std::vector<Tensor> recomputed = gradients_with(mode);
    EXPECT_EQ(reruns, 2 * segments);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(recomputed[i], plain[i])) << transformer.parameter_list()[i].spec.name;
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
