#include "lockstep/checkpoint/model_config.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/checkpoint/huggingface.h"
#include "lockstep/spec/fields.h"
#include "lockstep/spec/names.h"
#include "lockstep/spec/toml_value.h"

namespace lockstep::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

Json gpt2_config(const spec::ModelSpec& model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_layer", model.layers},
          {"n_embd", model.hidden},
          {"n_head", model.heads},
          {"n_inner", model.ffn_hidden},
          {"vocab_size", model.vocab},
          {"n_positions", model.sequence},
          {"layer_norm_epsilon", model.norm_eps},
          {"activation_function", model.activation == spec::Activation::gelu ? "gelu" : "gelu_new"},
          {"embd_pdrop", model.dropout},
          {"resid_pdrop", model.dropout},
          {"attn_pdrop", 0.0}};
}

Json llama_config(const spec::ModelSpec& model) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"num_hidden_layers", model.layers},
          {"hidden_size", model.hidden},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_size()},
          {"intermediate_size", model.ffn_hidden},
          {"vocab_size", model.vocab},
          {"max_position_embeddings", model.sequence},
          {"rms_norm_eps", model.norm_eps},
          {"rope_theta", model.rope_theta},
          {"hidden_act", "silu"},
          {"attention_bias", model.bias},
          {"mlp_bias", model.bias},
          {"attention_dropout", 0.0}};
}

template <class Value>
Json to_json(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return spec::name(value);
  } else {
    return value;
  }
}

Json lockstep_config(const spec::ModelSpec& model) {
  Json config = {{"model_type", "lockstep"}};
  spec::RunPlan plan{.model = model};
  plan.model.weights.clear();  // where the values came from says nothing about these
  spec::for_each_model_field(
      plan, [&](const char*, const char* key, const auto& value, const char*) { config[key] = to_json(value); });
  return config;
}

// Reads values of a config.json, with what is wrong with them said of the file.
class ConfigReader {
 public:
  ConfigReader(const std::string& json, std::string source) : source_(std::move(source)) {
    config_ = Json::parse(json, /*callback=*/nullptr, /*allow_exceptions=*/false);
    if (!config_.is_object()) throw CorruptCheckpoint(text(source_, " is not a JSON object"));
  }

  bool has(const std::string& key) const { return config_.contains(key) && !config_[key].is_null(); }

  template <class Value>
  Value get(const std::string& key) const {
    if (!has(key)) throw CorruptCheckpoint(text(source_, " lacks \"", key, "\""));
    try {
      return config_[key].get<Value>();
    } catch (const nlohmann::json::exception&) {
      throw CorruptCheckpoint(text(source_, ": \"", key, "\" cannot be ", config_[key].dump()));
    }
  }

  template <class Value>
  Value get_or(const std::string& key, const Value& absent) const {
    return has(key) ? get<Value>(key) : absent;
  }

  // Refuses a model whose arithmetic we do not have.
  template <class Value>
  void require(const std::string& key, const Value& supported) const {
    if (has(key) && get<Value>(key) != supported) unsupported(key, text("only ", Json(supported).dump()));
  }

  [[noreturn]] void unsupported(const std::string& key, const std::string& rule) const {
    throw Unsupported(text(source_, ": \"", key, "\" = ", config_[key].dump(), ": ", rule, " is supported"));
  }

  const Json& json() const { return config_; }

 private:
  std::string source_;
  Json config_;
};

spec::ModelSpec read_gpt2(const ConfigReader& config) {
  spec::ModelSpec model;
  model.layers = config.get<int64_t>("n_layer");
  model.hidden = config.get<int64_t>("n_embd");
  model.heads = model.kv_heads = config.get<int64_t>("n_head");
  model.ffn_hidden = config.get_or<int64_t>("n_inner", 4 * model.hidden);
  model.vocab = config.get<int64_t>("vocab_size");
  model.sequence = config.get<int64_t>("n_positions");
  model.norm_eps = config.get_or("layer_norm_epsilon", 1e-5);
  model.init_std = config.get_or("initializer_range", 0.02);
  model.tie_embeddings = config.get_or("tie_word_embeddings", true);
  const auto activation = config.get_or<std::string>("activation_function", "gelu_new");
  if (activation != "gelu" && activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    config.unsupported("activation_function", "gelu, gelu_new or gelu_pytorch_tanh");
  }
  model.activation = activation == "gelu" ? spec::Activation::gelu : spec::Activation::gelu_tanh;
  config.require("scale_attn_weights", true);
  config.require("scale_attn_by_inverse_layer_idx", false);
  config.require("add_cross_attention", false);
  return model;
}

// The base of the rotary frequencies; since its version 5 transformers keeps it among "rope_parameters".
double read_rope_theta(const ConfigReader& config) {
  if (config.has("rope_scaling")) config.unsupported("rope_scaling", "no rescaling of positions");
  if (!config.has("rope_parameters")) return config.get_or("rope_theta", 10000.0);
  const Json& rope = config.json()["rope_parameters"];
  if (rope.value("rope_type", "default") != "default") config.unsupported("rope_parameters", "rope_type default");
  return rope.value("rope_theta", 10000.0);
}

spec::ModelSpec read_llama(const ConfigReader& config) {
  spec::ModelSpec model;
  model.norm = spec::Norm::rmsnorm;
  model.activation = spec::Activation::swiglu;
  model.position = spec::Position::rope;
  model.layers = config.get<int64_t>("num_hidden_layers");
  model.hidden = config.get<int64_t>("hidden_size");
  model.heads = config.get<int64_t>("num_attention_heads");
  model.kv_heads = config.get_or("num_key_value_heads", model.heads);
  model.ffn_hidden = config.get<int64_t>("intermediate_size");
  model.vocab = config.get<int64_t>("vocab_size");
  model.sequence = config.get<int64_t>("max_position_embeddings");
  model.norm_eps = config.get_or("rms_norm_eps", 1e-6);
  model.init_std = config.get_or("initializer_range", 0.02);
  model.tie_embeddings = config.get_or("tie_word_embeddings", false);
  model.bias = config.get_or("attention_bias", false);
  model.rope_theta = read_rope_theta(config);
  config.require("mlp_bias", model.bias);
  config.require("hidden_act", std::string("silu"));
  if (model.heads > 0) config.require("head_dim", model.head_size());
  return model;
}

template <class Value>
void read_value(const ConfigReader& config, const std::string& key, Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    const auto named = spec::from_name<Value>(config.get<std::string>(key));
    if (!named) config.unsupported(key, join(spec::spellings<Value>(), " or "));
    value = *named;
  } else {
    value = config.get<Value>(key);
  }
}

spec::ModelSpec read_lockstep(const ConfigReader& config) {
  spec::RunPlan plan;
  spec::for_each_model_field(
      plan, [&](const char*, const char* key, auto& value, const char*) { read_value(config, key, value); });
  plan.model.dropout = 0;
  return plan.model;
}

spec::ModelSpec read_any(const ConfigReader& config) {
  const auto type = config.get<std::string>("model_type");
  if (type == "gpt2") return read_gpt2(config);
  if (type == "llama") return read_llama(config);
  if (type == "lockstep") return read_lockstep(config);
  config.unsupported("model_type", "gpt2, llama or lockstep");
}

}  // namespace

std::string to_config_json(const spec::ModelSpec& model, const std::string& dtype) {
  const Family family = family_of(model);
  if (family == Family::lockstep) return lockstep_config(model).dump(2) + "\n";
  Json config = family == Family::gpt2 ? gpt2_config(model) : llama_config(model);
  config["initializer_range"] = model.init_std;
  config["tie_word_embeddings"] = model.tie_embeddings;
  config["bos_token_id"] = nullptr;  // the defaults are numbers of a vocabulary that need not be ours
  config["eos_token_id"] = nullptr;
  config["torch_dtype"] = dtype;
  return config.dump(2) + "\n";
}

std::vector<Problem> contradictions(const spec::ModelSpec& model, const spec::ModelSpec& stored) {
  std::set<std::string> free = {"preset", "weights", "init_std", "dropout"};
  if (model.position == spec::Position::rope) {
    free.insert("sequence");
  } else {
    free.insert("rope_theta");
  }
  const spec::RunPlan stored_plan{.model = stored}, plan{.model = model};
  std::map<std::string, std::string> stored_values;
  spec::for_each_model_field(stored_plan, [&](const char*, const char* key, const auto& value, const char*) {
    stored_values[key] = spec::toml_value(value);
  });
  std::vector<Problem> problems;
  spec::for_each_model_field(plan, [&](const char* section, const char* key, const auto& value, const char*) {
    const std::string ours = spec::toml_value(value), theirs = stored_values[key];
    if (ours == theirs || free.contains(key)) return;
    problems.push_back({text(section, ".", key), ours, "must be what model.weights was made with", theirs});
  });
  return problems;
}

spec::ModelSpec parse_config_json(const std::string& json, const std::string& source) {
  const spec::ModelSpec model = read_any(ConfigReader(json, source));
  const std::vector<Problem> problems = spec::validate(model);
  if (!problems.empty()) throw CorruptCheckpoint(text(source, " describes no model: ", problems.front().message()));
  return model;
}

}  // namespace lockstep::checkpoint
