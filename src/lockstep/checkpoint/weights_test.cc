#include "lockstep/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/huggingface.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

spec::ModelSpec small(spec::ModelSpec model) {
  model.preset.clear();
  model.layers = 2;
  model.hidden = 16;
  model.heads = 4;
  model.kv_heads = std::min<int64_t>(model.kv_heads, 4);
  model.ffn_hidden = 24;
  model.vocab = 20;
  model.sequence = 8;
  return model;
}

spec::ModelSpec named_model(const std::string& name) {
  if (name == "gpt2") return small(spec::preset("gpt-tiny"));
  if (name == "llama") return small(spec::preset("llama-tiny"));
  spec::ModelSpec model = small(spec::preset("gpt-tiny"));
  if (name == "gpt2_untied") model.tie_embeddings = false;
  if (name == "mixed") {
    model.norm = spec::Norm::rmsnorm;
    model.bias = false;
  }
  return model;
}

std::vector<nn::Parameter> random_parameters(const spec::ModelSpec& model, uint64_t seed) {
  auto parameters = nn::create_parameters(spec::parameters(model), seed);
  const at::NoGradGuard no_grad;
  torch::manual_seed(seed);
  for (nn::Parameter& parameter : parameters) parameter.tensor.normal_();
  return parameters;
}

void expect_equal(const std::vector<nn::Parameter>& got, const std::vector<nn::Parameter>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i].tensor, expected[i].tensor)) << expected[i].spec.name;
  }
}

class WeightsTest : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  std::string complaint_of_loading(const spec::ModelSpec& model) {
    try {
      load_weights(folder_, model, random_parameters(model, 2));
    } catch (const Error& error) {
      return text(error.type_name(), ": ", error.what());
    }
    return "";
  }

  const spec::ModelSpec model_ = named_model(GetParam());
  const std::vector<nn::Parameter> parameters_ = random_parameters(model_, 1);
  const fs::path folder_ = fs::path(testing::TempDir()) / ("weights_" + GetParam());
};

INSTANTIATE_TEST_SUITE_P(Models, WeightsTest, testing::Values("gpt2", "gpt2_untied", "llama", "mixed"),
                         [](const auto& info) { return info.param; });

TEST_P(WeightsTest, SavedWeightsLoadWholeAndInShards) {
  for (const int64_t max_bytes : {int64_t{1} << 30, int64_t{3000}, int64_t{1}}) {
    save_weights(folder_, model_, parameters_, {.max_shard_bytes = max_bytes});
    EXPECT_EQ(fs::exists(folder_ / "model.safetensors"), max_bytes > 3000);
    const auto loaded = random_parameters(model_, 2);
    load_weights(folder_, model_, loaded);
    expect_equal(loaded, parameters_);
  }
}

TEST_P(WeightsTest, TheConfigDescribesTheModel) {
  save_weights(folder_, model_, parameters_);
  const spec::ModelSpec read = read_model_spec(folder_);
  EXPECT_EQ(family_of(read), family_of(model_));
  const auto expected = spec::parameters(model_), got = spec::parameters(read);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].name, expected[i].name);
    EXPECT_EQ(got[i].shape, expected[i].shape);
    EXPECT_EQ(got[i].tied_to, expected[i].tied_to);
  }
  EXPECT_EQ(read.heads, model_.heads);
  EXPECT_EQ(read.kv_heads, model_.kv_heads);
  EXPECT_EQ(read.activation, model_.activation);
  EXPECT_EQ(read.norm_eps, model_.norm_eps);
  EXPECT_EQ(read.rope_theta, model_.rope_theta);
}

TEST_P(WeightsTest, WhatNoShapeTellsIsChecked) {
  save_weights(folder_, model_, parameters_);
  spec::ModelSpec other = model_;
  other.heads = other.kv_heads = 2;
  other.norm_eps = 1e-3;
  EXPECT_THAT(complaint_of_loading(other),
              testing::AllOf(testing::StartsWith("InvalidArgument"), testing::HasSubstr("model.heads = 2"),
                             testing::HasSubstr("model.norm_eps = 0.001")));
}

TEST_P(WeightsTest, MissingUnexpectedAndMisshapenTensorsAreNamed) {
  save_weights(folder_, model_, parameters_);
  const fs::path file = folder_ / "model.safetensors";
  const std::string whole = read_file(file);
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& named : read_safetensors(file)) {
    tensors.push_back({named.name, named.tensor.clone()});
  }
  const std::string first = tensors.front().name, last = tensors.back().name;

  tensors.front().name = "stranger";
  write_safetensors(file, tensors);
  EXPECT_THAT(complaint_of_loading(model_),
              testing::AllOf(testing::StartsWith("CorruptCheckpoint"), testing::HasSubstr("lacks " + first),
                             testing::HasSubstr("has besides stranger")));
  tensors.front().name = first;
  tensors.back().tensor = at::ones({3, 5});
  write_safetensors(file, tensors);
  EXPECT_THAT(complaint_of_loading(model_), testing::HasSubstr("tensor " + last + " has the shape [3, 5]"));

  write_file(file, whole.substr(0, whole.size() - 5));
  EXPECT_THAT(complaint_of_loading(model_), testing::HasSubstr("tensor " + last + " ends 5 bytes after the end"));
}

TEST_P(WeightsTest, ALostShardIsNamed) {
  save_weights(folder_, model_, parameters_, {.max_shard_bytes = 3000});
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (!entry.path().filename().string().starts_with("model-00002")) continue;
    fs::remove(entry.path());
    EXPECT_EQ(complaint_of_loading(model_), "CorruptCheckpoint: " + entry.path().string() + " is missing");
    return;
  }
  FAIL() << "there was no second shard";
}

TEST_P(WeightsTest, AnIndexCannotPointOutOfItsFolder) {
  fs::create_directories(folder_);
  write_file(folder_ / "model.safetensors.index.json", R"({"weight_map": {"a": "../a.safetensors"}})");
  EXPECT_THAT(complaint_of_loading(model_), testing::HasSubstr("the file of a cannot be \"../a.safetensors\""));
  write_file(folder_ / "model.safetensors.index.json", "{}");
  EXPECT_THAT(complaint_of_loading(model_), testing::HasSubstr("has no \"weight_map\""));
}

TEST_P(WeightsTest, NamesWithoutPrefixAndRedundantTensorsLoad) {
  if (family_of(model_) == Family::lockstep) GTEST_SKIP() << "our own names have no other form";
  save_weights(folder_, model_, parameters_);
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& named : read_safetensors(folder_ / "model.safetensors")) {
    tensors.push_back({without_prefix(named.name, family_of(model_)), named.tensor.clone()});
  }
  const bool gpt2 = family_of(model_) == Family::gpt2;
  tensors.push_back({gpt2 ? "h.0.attn.bias" : "layers.0.self_attn.rotary_emb.inv_freq", at::ones({1})});
  if (model_.tie_embeddings) tensors.push_back({"lm_head.weight", tensors.front().tensor});
  write_safetensors(folder_ / "model.safetensors", tensors);
  const auto loaded = random_parameters(model_, 2);
  load_weights(folder_, model_, loaded);
  expect_equal(loaded, parameters_);
}

TEST(ModelConfig, RefusesWhatItCannotCompute) {
  const fs::path folder = fs::path(testing::TempDir()) / "config_test";
  fs::create_directories(folder);
  const std::string llama = R"("model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16, "vocab_size": 20,
      "num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": 8)";
  const std::string gpt2 =
      R"("model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 4, "vocab_size": 20, "n_positions": 8)";
  const auto complaint = [&](const std::string& json) -> std::string {
    write_file(folder / "config.json", json);
    try {
      read_model_spec(folder);
    } catch (const Error& error) {
      return text(error.type_name(), ": ", error.what());
    }
    return "";
  };
  EXPECT_EQ(complaint("{" + llama + "}"), "");
  EXPECT_EQ(complaint("{" + gpt2 + "}"), "");
  const std::pair<std::string, std::string> cases[] = {
      {"{" + llama + R"(, "rope_scaling": {"type": "linear"}})", "Unsupported: .*rope_scaling"},
      {"{" + llama + R"(, "hidden_act": "gelu"})", "Unsupported: .*hidden_act.*only \"silu\""},
      {"{" + llama + R"(, "head_dim": 8})", "Unsupported: .*head_dim"},
      {"{" + llama + R"(, "mlp_bias": true})", "Unsupported: .*mlp_bias"},
      {"{" + llama + R"(, "num_key_value_heads": 3})", "CorruptCheckpoint: .*model.kv_heads"},
      {"{" + gpt2 + R"(, "activation_function": "relu"})", "Unsupported: .*activation_function"},
      {"{" + gpt2 + R"(, "scale_attn_weights": false})", "Unsupported: .*scale_attn_weights"},
      {R"({"model_type": "mamba"})", "Unsupported: .*model_type.*gpt2, llama or lockstep"},
      {R"({"model_type": "gpt2"})", "CorruptCheckpoint: .*lacks \"n_layer\""},
      {R"({"model_type": "gpt2", "n_layer": "two"})", "CorruptCheckpoint: .*\"n_layer\" cannot be \"two\""},
      {R"({"model_type": "lockstep", "preset": ""})", "CorruptCheckpoint: .*lacks \"weights\""},
      {"{", "CorruptCheckpoint: .*is not a JSON object"},
  };
  for (const auto& [json, expected] : cases) EXPECT_THAT(complaint(json), testing::ContainsRegex(expected));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::checkpoint
