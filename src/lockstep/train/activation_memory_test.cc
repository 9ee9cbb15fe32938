// What a model keeps for its backward, counted, in each mode of recomputation.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/distributed/memory.h"
#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/transformer.h"

namespace lockstep::train {
namespace {

using nn::Context;
using nn::LocalSeams;
using nn::Parameter;
using nn::Transformer;

TEST(MemorySince, CountsWhatIsAllocatedAndItsPeak) {
  const at::Tensor before = at::empty({100});
  const MemorySince bytes;
  at::Tensor kept = at::empty({1000}, at::kDouble);
  EXPECT_EQ(bytes.now(), 8000);
  {
    const at::Tensor dropped = at::empty({500}, at::kByte);
  }
  EXPECT_EQ(bytes.now(), 8000);
  EXPECT_EQ(bytes.peak(), 8500);
  const MemorySince later;
  kept.reset();
  EXPECT_EQ(bytes.now(), 0);
  EXPECT_EQ(later.now(), -8000);
}

// What a model's forward keeps for its backward, and the most that is alive during both.
struct Memory {
  int64_t kept = 0, peak = 0;
};

Memory measure(const spec::ModelSpec& model, int64_t batch, spec::Recompute mode, at::ScalarType type = at::kFloat) {
  const Transformer transformer(model, /*seed=*/1, {.dtype = type});
  LocalSeams seams(1);
  const Context context{seams.seams(), {}, {mode, nullptr}};
  const at::Tensor tokens = at::zeros({batch, model.sequence}, at::kLong);
  for (const Parameter& parameter : transformer.parameter_list()) {
    parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor);
  }
  const MemorySince bytes;
  at::Tensor hidden = transformer.embed(tokens, context);
  const int64_t embedded = bytes.now();
  hidden = transformer.blocks({0, model.layers}, hidden, context);
  Memory memory{.kept = bytes.now() - embedded};
  transformer.token_losses(hidden, tokens, context).sum().backward();
  memory.peak = bytes.peak();
  return memory;
}

constexpr int64_t kBatch = 2;

spec::ModelSpec model_of(int64_t layers) {
  spec::ModelSpec model = spec::preset("gpt-tiny");
  model.layers = layers;
  model.hidden = 32;
  model.ffn_hidden = 128;
  model.sequence = 16;
  return model;
}

TEST(ActivationMemory, OfFullRecomputationIsTheInputOfEveryLayer) {
  const int64_t input_bytes = kBatch * 16 * 32 * 4;
  for (const int64_t layers : {1, 4, 9}) {
    EXPECT_EQ(measure(model_of(layers), kBatch, spec::Recompute::full).kept, layers * input_bytes) << layers;
  }
}

TEST(ActivationMemory, GrowsAsTheModeSays) {
  const auto kept = [](int64_t layers, spec::Recompute mode) { return measure(model_of(layers), kBatch, mode).kept; };
  const int64_t layer = kept(1, spec::Recompute::none), input = kept(1, spec::Recompute::full);
  EXPECT_EQ(kept(16, spec::Recompute::none), 16 * layer);
  EXPECT_EQ(kept(16, spec::Recompute::sqrt), 3 * input + 4 * layer);
  // The attention core is one kernel here: besides its output, which the next layer keeps as its input anyway, it keeps
  // the logarithm of one sum per query.
  const int64_t log_sums = kBatch * model_of(1).heads * 16 * 4;
  EXPECT_EQ(kept(16, spec::Recompute::selective), 16 * (layer - log_sums));
  for (const int64_t layers : {4, 9, 16}) {
    std::vector<int64_t> peaks;
    for (const auto mode : {spec::Recompute::none, spec::Recompute::sqrt, spec::Recompute::full}) {
      peaks.push_back(measure(model_of(layers), kBatch, mode).peak);
    }
    EXPECT_GT(peaks[0], peaks[1]) << layers;
    EXPECT_GT(peaks[1], peaks[2]) << layers;
  }
}

// But for attention's logarithm of a sum per query, which stays fp32.
TEST(ActivationMemory, OfBf16IsHalf) {
  const auto kept = [](at::ScalarType type) { return measure(model_of(4), kBatch, spec::Recompute::none, type).kept; };
  const int64_t fp32_bytes = 4 * kBatch * 16 * model_of(1).heads * 4;
  EXPECT_EQ(kept(at::kBFloat16) - fp32_bytes, (kept(at::kFloat) - fp32_bytes) / 2);
}

}  // namespace
}  // namespace lockstep::train
