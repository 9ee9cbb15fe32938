// Published models by name. The counts that these must give stand, with their sources, in model_test.cc.
#include <algorithm>
#include <functional>
#include <utility>

#include "lockstep/spec/model.h"

namespace lockstep::spec {

namespace {

struct Size {
  int64_t layers, hidden, heads, kv_heads, ffn_hidden;
};

ModelSpec sized(const Size& size) {
  ModelSpec spec;
  spec.layers = size.layers;
  spec.hidden = size.hidden;
  spec.heads = size.heads;
  spec.kv_heads = size.kv_heads;
  spec.ffn_hidden = size.ffn_hidden;
  return spec;
}

// source   Radford et al. 2019, "Language models are unsupervised multitask learners"; the released checkpoints
ModelSpec gpt2(int64_t layers, int64_t hidden, int64_t heads) {
  ModelSpec spec = sized({layers, hidden, heads, heads, 4 * hidden});
  spec.vocab = 50257;
  spec.sequence = 1024;
  spec.activation = Activation::gelu_tanh;
  return spec;
}

ModelSpec llama(const Size& size, int64_t vocab, int64_t sequence, double rope_theta) {
  ModelSpec spec = sized(size);
  spec.vocab = vocab;
  spec.sequence = sequence;
  spec.norm = Norm::rmsnorm;
  spec.activation = Activation::swiglu;
  spec.position = Position::rope;
  spec.rope_theta = rope_theta;
  spec.bias = false;
  spec.tie_embeddings = false;
  return spec;
}

// source   Touvron et al. 2023, "Llama 2", and the released checkpoints
ModelSpec llama_2(const Size& size) {
  return llama(size, 32000, 4096, 10000);
}

// The lengths are those of the main pre-training; the rescaled positions of the later long-context phases are not
// modelled. source   Grattafiori et al. 2024, "The Llama 3 herd of models", table 3
ModelSpec llama_3(const Size& size) {
  return llama(size, 128256, 8192, 500000);
}

struct Preset {
  std::string_view name;
  ModelSpec (*make)();
};

constexpr Preset kPresets[] = {
    {"gpt-tiny",
     [] {
       ModelSpec spec;
       spec.activation = Activation::gelu_tanh;
       return spec;
     }},
    {"llama-tiny", [] { return llama({4, 128, 4, 2, 352}, 256, 128, 10000); }},
    {"gpt2-124m", [] { return gpt2(12, 768, 12); }},
    {"gpt2-355m", [] { return gpt2(24, 1024, 16); }},
    {"gpt2-774m", [] { return gpt2(36, 1280, 20); }},
    {"gpt2-1.5b", [] { return gpt2(48, 1600, 25); }},
    {"llama-2-7b", [] { return llama_2({32, 4096, 32, 32, 11008}); }},
    {"llama-2-13b", [] { return llama_2({40, 5120, 40, 40, 13824}); }},
    {"llama-2-70b", [] { return llama_2({80, 8192, 64, 8, 28672}); }},
    {"llama-3-8b", [] { return llama_3({32, 4096, 32, 8, 14336}); }},
    {"llama-3-70b", [] { return llama_3({80, 8192, 64, 8, 28672}); }},
    {"llama-3.1-405b", [] { return llama_3({126, 16384, 128, 8, 53248}); }},
};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

ModelSpec preset(const std::string& name) {
  const auto* found = std::ranges::find(kPresets, name, &Preset::name);
  if (found == std::end(kPresets)) {
    throw InvalidArgument(Problem{"model.preset", text('"', name, '"'), text("must be one of ", join(preset_names())),
                                  nearest_name(name, preset_names())}
                              .message());
  }
  ModelSpec spec = found->make();
  spec.preset = name;
  return spec;
}

}  // namespace lockstep::spec
