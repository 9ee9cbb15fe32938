#include "lockstep/checkpoint/huggingface.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace lockstep::checkpoint {

namespace {

// A module of ours and its name there. With `transposed`, weights are [in, out] (GPT-2's Conv1D).
struct Module {
  std::string_view ours, theirs;
  bool transposed = false;
};

struct Naming {
  std::string_view prefix, layers;  // "transformer.", "h."
  std::span<const Module> in_layer, outside;
};

constexpr Module kGpt2InLayer[] = {
    {"attention_norm", "ln_1"},
    {"attention.query", "attn.c_attn", true},
    {"attention.key", "attn.c_attn", true},
    {"attention.value", "attn.c_attn", true},
    {"attention.output", "attn.c_proj", true},
    {"ffn_norm", "ln_2"},
    {"ffn.up", "mlp.c_fc", true},
    {"ffn.down", "mlp.c_proj", true},
};
constexpr Module kGpt2Outside[] = {
    {"embed.tokens", "transformer.wte"},
    {"embed.positions", "transformer.wpe"},
    {"final_norm", "transformer.ln_f"},
    {"head", "lm_head"},
};
constexpr Module kLlamaInLayer[] = {
    {"attention_norm", "input_layernorm"},
    {"attention.query", "self_attn.q_proj"},
    {"attention.key", "self_attn.k_proj"},
    {"attention.value", "self_attn.v_proj"},
    {"attention.output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn.gate", "mlp.gate_proj"},
    {"ffn.up", "mlp.up_proj"},
    {"ffn.down", "mlp.down_proj"},
};
constexpr Module kLlamaOutside[] = {
    {"embed.tokens", "model.embed_tokens"},
    {"final_norm", "model.norm"},
    {"head", "lm_head"},
};
constexpr Naming kGpt2 = {"transformer.", "h.", kGpt2InLayer, kGpt2Outside};
constexpr Naming kLlama = {"model.", "layers.", kLlamaInLayer, kLlamaOutside};

const Module& find(std::span<const Module> modules, std::string_view ours) {
  const auto found = std::ranges::find(modules, ours, &Module::ours);
  LOCKSTEP_CHECK(found != modules.end(), "no name for the module ", ours);
  return *found;
}

// "layers.3.attention.query.weight" -> "transformer.h.3.attn.c_attn.weight", transposed
StoredTensor stored_as(std::string_view parameter, const Naming& naming) {
  const size_t last_dot = parameter.rfind('.');
  std::string_view module = parameter.substr(0, last_dot);
  const std::string_view leaf = parameter.substr(last_dot);  // ".weight"
  constexpr std::string_view kLayers = "layers.";
  std::string place;
  std::span<const Module> modules = naming.outside;
  if (module.starts_with(kLayers)) {
    const size_t after_index = module.find('.', kLayers.size()) + 1;
    place = text(naming.prefix, naming.layers, module.substr(kLayers.size(), after_index - kLayers.size()));
    module.remove_prefix(after_index);
    modules = naming.in_layer;
  }
  const Module& found = find(modules, module);
  return {text(place, found.theirs, leaf), {std::string(parameter)}, found.transposed && leaf == ".weight"};
}

StoredTensor stored_as(const std::string& parameter, Family family) {
  switch (family) {
    case Family::gpt2:
      return stored_as(parameter, kGpt2);
    case Family::llama:
      return stored_as(parameter, kLlama);
    case Family::lockstep:
      return {parameter, {parameter}};
  }
  LOCKSTEP_CHECK(false, "unknown family");
}

}  // namespace

Family family_of(const spec::ModelSpec& model) {
  using spec::Activation;
  const bool plain = model.norm == spec::Norm::layernorm && model.position == spec::Position::learned;
  if (plain && model.activation != Activation::swiglu && model.bias && model.kv_heads == model.heads) {
    return Family::gpt2;
  }
  const bool rotary = model.norm == spec::Norm::rmsnorm && model.position == spec::Position::rope;
  return rotary && model.activation == Activation::swiglu ? Family::llama : Family::lockstep;
}

std::vector<StoredTensor> stored_tensors(const spec::ModelSpec& model) {
  const Family family = family_of(model);
  std::vector<StoredTensor> stored;
  for (const spec::ParameterSpec& parameter : spec::parameters(model)) {
    if (!parameter.tied_to.empty()) continue;
    StoredTensor tensor = stored_as(parameter.name, family);
    const auto same = std::ranges::find(stored, tensor.name, &StoredTensor::name);
    if (same == stored.end()) {
      stored.push_back(std::move(tensor));
    } else {
      same->parts.push_back(parameter.name);
    }
  }
  return stored;
}

std::string without_prefix(const std::string& name, Family family) {
  if (family == Family::lockstep) return name;
  const std::string_view prefix = family == Family::gpt2 ? kGpt2.prefix : kLlama.prefix;
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

bool is_redundant(const std::string& name, const spec::ModelSpec& model) {
  switch (family_of(model)) {
    case Family::gpt2:
      if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return true;
      break;
    case Family::llama:
      if (name.ends_with(".rotary_emb.inv_freq")) return true;
      break;
    case Family::lockstep:
      return false;
  }
  return model.tie_embeddings && name == "lm_head.weight";
}

}  // namespace lockstep::checkpoint
