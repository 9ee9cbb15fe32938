#include "lockstep/spec/model.h"

#include <cmath>

#include "lockstep/spec/rules.h"

namespace lockstep::spec {

namespace {

// Gathers the parameters of one model; each function adds those of one part, in the order of the forward pass.
class ParameterList {
 public:
  explicit ParameterList(const ModelSpec& spec)
      : spec_(spec),
        normal_{Init::Kind::normal, spec.init_std},
        residual_{Init::Kind::normal, spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.layers))} {}

  void embeddings() {
    add({.name = "embed.tokens.weight",
         .shape = {spec_.vocab, spec_.hidden},
         .logical_dims = {"vocab", "embed"},
         .init = normal_});
    if (spec_.position == Position::learned) {
      add({.name = "embed.positions.weight",
           .shape = {spec_.sequence, spec_.hidden},
           .logical_dims = {"position", "embed"},
           .init = normal_});
    }
  }

  void layer(int64_t index) {
    const std::string prefix = text("layers.", index, ".");
    const Dim embed{"embed", spec_.hidden}, heads{"heads", spec_.heads * spec_.head_size()};
    const Dim kv_heads{"kv_heads", spec_.kv_heads * spec_.head_size()}, ffn{"ffn", spec_.ffn_hidden};
    norm(prefix + "attention_norm");
    linear(prefix + "attention.query", heads, embed, normal_);
    linear(prefix + "attention.key", kv_heads, embed, normal_);
    linear(prefix + "attention.value", kv_heads, embed, normal_);
    linear(prefix + "attention.output", embed, heads, residual_);
    norm(prefix + "ffn_norm");
    if (spec_.activation == Activation::swiglu) linear(prefix + "ffn.gate", ffn, embed, normal_);
    linear(prefix + "ffn.up", ffn, embed, normal_);
    linear(prefix + "ffn.down", embed, ffn, residual_);
  }

  void head() {
    norm("final_norm");
    add({.name = "head.weight",
         .shape = {spec_.vocab, spec_.hidden},
         .logical_dims = {"vocab", "embed"},
         .init = normal_,
         .tied_to = spec_.tie_embeddings ? "embed.tokens.weight" : ""});
  }

  std::vector<ParameterSpec> take() { return std::move(list_); }

 private:
  struct Dim {
    std::string name;
    int64_t size;
  };

  void add(ParameterSpec parameter) { list_.push_back(std::move(parameter)); }

  void norm(const std::string& name) {
    add({.name = name + ".weight",
         .shape = {spec_.hidden},
         .logical_dims = {"embed"},
         .init = {Init::Kind::ones},
         .decay = false});
    if (spec_.norm == Norm::layernorm) {
      add({.name = name + ".bias", .shape = {spec_.hidden}, .logical_dims = {"embed"}, .decay = false});
    }
  }

  void linear(const std::string& name, const Dim& out, const Dim& in, const Init& init) {
    add({.name = name + ".weight", .shape = {out.size, in.size}, .logical_dims = {out.name, in.name}, .init = init});
    if (spec_.bias) {
      add({.name = name + ".bias", .shape = {out.size}, .logical_dims = {out.name}, .decay = false});
    }
  }

  const ModelSpec& spec_;
  const Init normal_, residual_;
  std::vector<ParameterSpec> list_;
};

}  // namespace

int64_t ParameterSpec::count() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

std::vector<ParameterSpec> parameters(const ModelSpec& spec) {
  ParameterList list(spec);
  list.embeddings();
  for (int64_t index = 0; index < spec.layers; ++index) list.layer(index);
  list.head();
  return list.take();
}

std::vector<ModelPart> parts(const ModelSpec& spec) {
  std::vector<ModelPart> parts;
  for (const ParameterSpec& parameter : parameters(spec)) {
    std::string part = "head";
    if (parameter.name.starts_with("embed.")) part = "embed";
    if (parameter.name.starts_with("layers.")) part = parameter.name.substr(0, parameter.name.find('.', 7));
    if (parts.empty() || parts.back().name != part) parts.push_back({part, {}});
    parts.back().parameters.push_back(parameter.tied_to.empty() ? parameter.name : parameter.tied_to);
  }
  return parts;
}

int64_t parameter_count(const ModelSpec& spec) {
  int64_t sum = 0;
  for (const ParameterSpec& parameter : parameters(spec)) {
    if (parameter.tied_to.empty()) sum += parameter.count();
  }
  return sum;
}

std::vector<Problem> validate(const ModelSpec& spec) {
  constexpr int64_t kMaxWidth = int64_t{1} << 20;  // with the bounds below, counts stay far from 2^63
  Rules rules;
  rules.within("model.layers", spec.layers, 1, 10'000);
  rules.within("model.vocab", spec.vocab, 1, int64_t{1} << 31);
  rules.within("model.sequence", spec.sequence, 1, int64_t{1} << 31);
  rules.within("model.ffn_hidden", spec.ffn_hidden, 1, kMaxWidth);
  const bool hidden = rules.within("model.hidden", spec.hidden, 1, kMaxWidth);
  const bool heads = rules.within("model.heads", spec.heads, 1, kMaxWidth);
  const bool kv_heads = rules.within("model.kv_heads", spec.kv_heads, 1, kMaxWidth);
  if (hidden && heads && kv_heads) {
    const bool whole_heads = rules.divides("model.heads", spec.heads, "model.hidden", spec.hidden);
    rules.divides("model.kv_heads", spec.kv_heads, "model.heads", spec.heads);
    if (whole_heads && spec.position == Position::rope && spec.head_size() % 2 != 0) {
      rules.broken("model.heads", spec.heads,
                   text("rope turns pairs of dims, so model.hidden / model.heads must be even, not ", spec.head_size()),
                   nearest_values(spec.heads, 1, spec.hidden, [&](int64_t candidate) {
                     return spec.hidden % candidate == 0 && spec.hidden / candidate % 2 == 0 &&
                            (spec.kv_heads == spec.heads || candidate % spec.kv_heads == 0);
                   }));
    }
  }
  rules.positive("model.norm_eps", spec.norm_eps);
  rules.positive("model.rope_theta", spec.rope_theta);
  rules.not_negative("model.init_std", spec.init_std);
  rules.fraction("model.dropout", spec.dropout);
  return rules.take();
}

}  // namespace lockstep::spec
