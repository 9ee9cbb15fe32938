// Figures that the documents of docs/documents.md state about whole models, against the lists that nn/ creates from.
// Golden values stand here with the document and section they come from; where a text rounds, what it rounds does too.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "lockstep/base/units.h"
#include "lockstep/spec/model.h"

namespace lockstep::spec {
namespace {

constexpr int64_t kFp32AdamBytes = 4 + 4 + 8;  // weight, gradient, two moments: what a data-parallel rank here holds

ModelSpec gpt(int64_t layers, int64_t hidden, int64_t heads) {
  ModelSpec spec;
  spec.layers = layers;
  spec.hidden = hidden;
  spec.heads = spec.kv_heads = heads;
  spec.ffn_hidden = 4 * hidden;
  return spec;
}

int64_t count_of(const ModelSpec& spec, const std::string& prefix) {
  int64_t sum = 0;
  for (const ParameterSpec& parameter : parameters(spec)) {
    if (parameter.name.starts_with(prefix)) sum += parameter.count();
  }
  return sum;
}

double bytes_of(const std::string& name) {
  return static_cast<double>(parameter_count(preset(name)) * kFp32AdamBytes);
}

// "分布式深度学习", exercise 1: param_count = L (12 d^2 + 13 d), called approximate; d = 1024, L = 24.
TEST(Documents, TheScriptOfExercise1CountsTheLayersExactlyAndNothingElse) {
  for (const auto& [layers, hidden] : {std::pair<int64_t, int64_t>{1, 64}, {12, 768}, {24, 1024}}) {
    EXPECT_EQ(count_of(gpt(layers, hidden, hidden / 64), "layers."), layers * (12 * hidden * hidden + 13 * hidden));
  }
  const ModelSpec medium = preset("gpt2-355m");  // the released model of that size
  EXPECT_EQ(count_of(medium, "layers."), 302'309'376);
  EXPECT_EQ(parameter_count(medium), 354'823'168);
  EXPECT_EQ(count_of(medium, "embed.") + count_of(medium, "final_norm."), 52'513'792);  // what it leaves out
}

// The same document, "显存墙": 7e9 parameters take 28 + 28 + 56 = 112 GB. "CS336 Lecture 8", "DDP 的显存账单": 13B take
// 208 GB; that is 2 + 2 + 4 + 8 bytes, ours 4 + 4 + 8. "第 16 讲", section 1.1: 175B take 2.8 TB.
TEST(Documents, StatesOfWholeModelsAre16BytesAParameter) {
  EXPECT_NEAR(bytes_of("llama-2-7b"), 112e9, 0.04 * 112e9);  // "7B" has 6.74e9
  EXPECT_NEAR(bytes_of("llama-2-13b"), 208e9, 0.002 * 208e9);
  EXPECT_NEAR(bytes_of("llama-2-13b") * 2 / kFp32AdamBytes, 26e9, 0.002 * 26e9);  // gradients of 2 bytes

  ModelSpec gpt3 = gpt(96, 12288, 96);
  gpt3.vocab = 50257;
  gpt3.sequence = 2048;
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt3)), 175e9, 0.003 * 175e9);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt3) * kFp32AdamBytes), 2.8e12, 0.003 * 2.8e12);
  // "第一段多了词嵌入（相当于 0.35 层）", with its vocabulary padded to 51200
  gpt3.vocab = 51200;
  EXPECT_NEAR(static_cast<double>(count_of(gpt3, "embed.tokens.")) / static_cast<double>(count_of(gpt3, "layers.0.")),
              0.35, 0.005);
}

// "CS336 Lecture 8", "一个 DDP 的数值化判断" and "一个四卡算例": 200e6 and 12 x 4096^2 parameters of 16 bytes, both
// printed as 3.2 GiB. The first is 3.2 GB; the second is 3 GiB to the byte, 3.22 GB. One weight in fp16: 32 MiB.
TEST(Documents, SizesThatTheyPrintInGiBAreInGB) {
  EXPECT_LT(200'000'000 * kFp32AdamBytes, parse_size("3G", "bytes"));
  EXPECT_EQ(int64_t{12} * 4096 * 4096 * kFp32AdamBytes, parse_size("3G", "bytes"));
  EXPECT_EQ(int64_t{4096} * 4096 * 2, parse_size("32M", "bytes"));
}

}  // namespace
}  // namespace lockstep::spec
