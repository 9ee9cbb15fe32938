#include "lockstep/spec/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace lockstep::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Parameters of the released checkpoints, counted from their tensors: GPT-2 by `transformers` (gpt2, gpt2-medium,
// gpt2-large, gpt2-xl); Llama from the safetensors metadata of meta-llama's repositories on Hugging Face.
const std::map<std::string, int64_t> kPublishedCounts = {
    {"gpt2-124m", 124'439'808},          {"gpt2-355m", 354'823'168},    {"gpt2-774m", 774'030'080},
    {"gpt2-1.5b", 1'557'611'200},        {"llama-2-7b", 6'738'415'616}, {"llama-2-13b", 13'015'864'320},
    {"llama-2-70b", 68'976'648'192},     {"llama-3-8b", 8'030'261'248}, {"llama-3-70b", 70'553'706'496},
    {"llama-3.1-405b", 405'853'388'800},
};

TEST(Presets, HaveThePublishedParameterCounts) {
  for (const auto& [name, count] : kPublishedCounts) EXPECT_EQ(parameter_count(preset(name)), count) << name;
}

TEST(Presets, AreValidAndKnowTheirName) {
  for (const std::string& name : preset_names()) {
    EXPECT_THAT(validate(preset(name)), IsEmpty()) << name;
    EXPECT_EQ(preset(name).preset, name);
  }
}

TEST(Presets, AMisspeltNameGetsTheNearest) {
  try {
    preset("gpt2-124M");
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("(nearest: gpt2-124m)"));
  }
}

std::vector<std::string> names(const ModelSpec& spec) {
  std::vector<std::string> result;
  for (const ParameterSpec& parameter : parameters(spec)) result.push_back(parameter.name);
  return result;
}

TEST(Parameters, OfAGpt2InTheOrderOfTheForwardPass) {
  ModelSpec spec = preset("gpt-tiny");
  spec.layers = 1;
  EXPECT_THAT(
      names(spec),
      ElementsAre("embed.tokens.weight", "embed.positions.weight", "layers.0.attention_norm.weight",
                  "layers.0.attention_norm.bias", "layers.0.attention.query.weight", "layers.0.attention.query.bias",
                  "layers.0.attention.key.weight", "layers.0.attention.key.bias", "layers.0.attention.value.weight",
                  "layers.0.attention.value.bias", "layers.0.attention.output.weight", "layers.0.attention.output.bias",
                  "layers.0.ffn_norm.weight", "layers.0.ffn_norm.bias", "layers.0.ffn.up.weight",
                  "layers.0.ffn.up.bias", "layers.0.ffn.down.weight", "layers.0.ffn.down.bias", "final_norm.weight",
                  "final_norm.bias", "head.weight"));
}

TEST(Parameters, OfALlamaHaveNoBiasesAndAGate) {
  ModelSpec spec = preset("llama-tiny");
  spec.layers = 1;
  EXPECT_THAT(names(spec),
              ElementsAre("embed.tokens.weight", "layers.0.attention_norm.weight", "layers.0.attention.query.weight",
                          "layers.0.attention.key.weight", "layers.0.attention.value.weight",
                          "layers.0.attention.output.weight", "layers.0.ffn_norm.weight", "layers.0.ffn.gate.weight",
                          "layers.0.ffn.up.weight", "layers.0.ffn.down.weight", "final_norm.weight", "head.weight"));
}

TEST(Parameters, ShapesDimsAndDecayGoTogether) {
  for (const std::string& name : preset_names()) {
    const ModelSpec spec = preset(name);
    const std::map<std::string, int64_t> size_of_dim = {
        {"vocab", spec.vocab},  {"position", spec.sequence}, {"embed", spec.hidden},
        {"heads", spec.hidden}, {"ffn", spec.ffn_hidden},    {"kv_heads", spec.kv_heads * spec.head_size()},
    };
    std::set<std::string> seen;
    for (const ParameterSpec& parameter : parameters(spec)) {
      EXPECT_TRUE(seen.insert(parameter.name).second) << parameter.name << " is listed twice";
      ASSERT_EQ(parameter.shape.size(), parameter.logical_dims.size()) << parameter.name;
      for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
        EXPECT_EQ(parameter.shape[dim], size_of_dim.at(parameter.logical_dims[dim])) << parameter.name;
      }
      EXPECT_EQ(parameter.decay, parameter.shape.size() == 2) << parameter.name;
    }
  }
}

TEST(Parameters, ResidualOutputsStartSmaller) {
  const ModelSpec spec = preset("gpt2-124m");
  for (const ParameterSpec& parameter : parameters(spec)) {
    const bool residual =
        parameter.name.ends_with("attention.output.weight") || parameter.name.ends_with("ffn.down.weight");
    if (residual) {
      EXPECT_DOUBLE_EQ(parameter.init.std, 0.02 / std::sqrt(24)) << parameter.name;
    } else if (parameter.shape.size() == 2) {
      EXPECT_DOUBLE_EQ(parameter.init.std, 0.02) << parameter.name;
    }
  }
}

TEST(Parameters, AnUntiedHeadIsCounted) {
  ModelSpec spec = preset("gpt-tiny");
  const int64_t tied = parameter_count(spec);
  spec.tie_embeddings = false;
  EXPECT_EQ(parameter_count(spec), tied + spec.vocab * spec.hidden);
}

std::vector<std::string> messages(const std::vector<Problem>& problems) {
  std::vector<std::string> result;
  for (const Problem& problem : problems) result.push_back(problem.message());
  return result;
}

TEST(ValidateModel, NamesEveryBrokenRuleAtOnce) {
  ModelSpec spec;
  spec.layers = 0;
  spec.heads = 5;
  spec.dropout = 1;
  EXPECT_THAT(messages(validate(spec)), ElementsAre("model.layers = 0: must be from 1 to 10000 (nearest: 1)",
                                                    "model.heads = 5: must divide model.hidden = 128 (nearest: 4 or 8)",
                                                    "model.kv_heads = 4: must divide model.heads = 5 (nearest: 1 or 5)",
                                                    "model.dropout = 1: must be at least 0 and below 1"));
}

TEST(ValidateModel, RopeNeedsPairs) {
  ModelSpec spec = preset("llama-tiny");
  spec.hidden = 12;
  EXPECT_THAT(validate(spec), SizeIs(1));
  EXPECT_THAT(messages(validate(spec)).front(), HasSubstr("must be even, not 3 (nearest: 2 or 6)"));
}

TEST(ValidateModel, AbsurdSizesAndNumbersAreRefusedNotComputedWith) {
  ModelSpec spec;
  spec.hidden = int64_t{1} << 62;
  spec.heads = -4;
  spec.kv_heads = 0;
  spec.init_std = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(validate(spec), SizeIs(4));
}

}  // namespace
}  // namespace lockstep::spec
