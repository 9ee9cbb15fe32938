#include "lockstep/nn/generator.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

namespace lockstep::nn {
namespace {

using at::Tensor;

Transformer small_model(const std::string& preset) {
  spec::ModelSpec model = spec::preset(preset);
  model.layers = 2;
  model.vocab = 40;
  model.sequence = 16;
  model.init_std = 0.3;  // far from uniform logits
  model.dropout = 0.1;   // of training, to be left out
  return Transformer(model, /*seed=*/1, {.dtype = at::kDouble});
}

// The same parameters, in evaluation mode.
Transformer evaluation_of(const Transformer& model) {
  Transformer evaluated(model.model(), model.parameter_list());
  evaluated.eval();
  return evaluated;
}

TEST(Generator, LogitsAreTheUncachedOnes) {
  const at::NoGradGuard no_grad;
  for (const char* preset : {"gpt-tiny", "llama-tiny"}) {
    const Transformer model = small_model(preset);
    const Transformer evaluated = evaluation_of(model);
    LocalSeams seams(/*seed=*/1);
    const Context context{seams.seams(), {}};
    torch::manual_seed(2);
    const Tensor tokens = at::randint(40, {3, 16}, at::kLong);
    const Tensor expected = evaluated.logits(evaluated.hidden(tokens, context), context);

    Generator generator(model);
    for (const auto& [begin, end] : {std::pair{0, 5}, {5, 6}, {6, 7}, {7, 12}, {12, 16}}) {
      const Tensor logits = generator.feed(tokens.slice(1, begin, end));
      EXPECT_TRUE(at::allclose(logits, expected.select(1, end - 1), 0, 1e-10)) << preset << " " << end;
    }
    EXPECT_THROW(generator.feed(tokens.narrow(1, 0, 1)), InvalidArgument);
  }
}

TEST(Generate, GreedyFollowsTheUncachedModelPastItsSequence) {
  const at::NoGradGuard no_grad;
  const Transformer model = evaluation_of(small_model("gpt-tiny"));
  LocalSeams seams(/*seed=*/1);
  const Context context{seams.seams(), {}};
  std::vector<int64_t> text = {1, 2, 3};
  const std::vector<int64_t> generated = generate(model, text, 24, {.temperature = 0});
  ASSERT_EQ(generated.size(), 24);
  for (size_t i = 0; text.size() < 16; ++i) {
    const Tensor logits = model.logits(model.hidden(at::tensor(text, at::kLong).unsqueeze(0), context), context);
    text.push_back(logits[0][-1].argmax().item<int64_t>());
    EXPECT_EQ(generated[i], text.back()) << i;
  }
}

TEST(Generate, DependsOnItsSeedAlone) {
  const Transformer model = small_model("llama-tiny");
  const auto text = [&](uint64_t seed) { return generate(model, {5}, 30, {.seed = seed}); };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
  EXPECT_THROW(generate(model, {}, 1, {}), InvalidArgument);
}

TEST(Sample, FollowsTheProbabilities) {
  const Tensor logits = at::tensor({0.1, 0.6, 0.0, 0.3}).log();
  std::vector<int> counts(4);
  for (int64_t draw = 0; draw < 4000; ++draw) ++counts[sample(logits, {}, draw)];
  EXPECT_NEAR(counts[0] / 4000.0, 0.1, 0.03);
  EXPECT_NEAR(counts[1] / 4000.0, 0.6, 0.03);
  EXPECT_EQ(counts[2], 0);
  EXPECT_NEAR(counts[3] / 4000.0, 0.3, 0.03);
}

TEST(Sample, TopKAndTemperatureNarrowTheChoice) {
  const Tensor logits = at::tensor({0.1, 0.5, 0.1, 0.3}).log();
  std::set<int64_t> seen;
  for (int64_t draw = 0; draw < 200; ++draw) {
    seen.insert(sample(logits, {.top_k = 2}, draw));
    EXPECT_EQ(sample(logits, {.temperature = 0}, draw), 1);
    EXPECT_EQ(sample(logits, {.temperature = 0.01}, draw), 1);
  }
  EXPECT_EQ(seen, (std::set<int64_t>{1, 3}));
}

}  // namespace
}  // namespace lockstep::nn
