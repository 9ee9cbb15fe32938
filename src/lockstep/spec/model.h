// What a model is, and the list of its parameters: names, shapes, logical dims and initial values, without allocating
// any. nn/ creates from this list, cost/ counts it, checkpoint/ names it, placements follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::spec {

// Target of a token that does not count.
inline constexpr int64_t kIgnoredTarget = -1;

enum class Norm { layernorm, rmsnorm };
enum class Activation { gelu, gelu_tanh, swiglu };
enum class Position { learned, rope };

// A decoder-only transformer: GPT-2 (layernorm, gelu_tanh, learned, bias, tied) and Llama (rmsnorm, swiglu, rope, no
// bias, grouped-query attention) by configuration. Keys of [model] in the configuration carry the same names.
struct ModelSpec {
  std::string preset;   // informative once expanded
  std::string weights;  // folder of safetensors to start from; empty: initial values
  int64_t layers = 4;
  int64_t hidden = 128;
  int64_t heads = 4;
  int64_t kv_heads = 4;
  int64_t ffn_hidden = 512;
  int64_t vocab = 256;
  int64_t sequence = 128;
  Norm norm = Norm::layernorm;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu;
  Position position = Position::learned;
  double rope_theta = 10000;
  bool bias = true;
  bool tie_embeddings = true;
  double init_std = 0.02;
  double dropout = 0;

  int64_t head_size() const { return hidden / heads; }
};

struct Init {
  enum class Kind { zeros, ones, normal } kind = Kind::zeros;
  double std = 0;
};

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;             // linear weights are [out, in]
  std::vector<std::string> logical_dims;  // one per dim: "vocab", "heads", "kv_heads", "ffn", "embed", "position"
  Init init;
  bool decay = true;    // weight decay applies (matrices; not biases and norms)
  std::string tied_to;  // name of the parameter whose storage this one is; empty: its own
  int64_t count() const;
};

// The model's parameters in the order of the forward pass; a tied head is listed with tied_to and not counted again.
//   embed.tokens.weight [V,H]            embed.positions.weight [S,H] (learned)
//   layers.I.attention_norm.{weight,bias} [H]
//   layers.I.attention.{query,key,value}.{weight,bias}   weight [heads*D,H] / [kv_heads*D,H]
//   layers.I.attention.output.{weight,bias}              weight [H,heads*D]
//   layers.I.ffn_norm.{weight,bias} [H]
//   layers.I.ffn.{gate,up,down}.{weight,bias}            gate only with swiglu; up [F,H], down [H,F]
//   final_norm.{weight,bias} [H]         head.weight [V,H] (tied_to embed.tokens.weight when tied)
// rmsnorm has no bias; linear biases exist when spec.bias. Residual output weights (attention.output, ffn.down) start
// with std init_std / sqrt(2 * layers), as GPT-2's do.
std::vector<ParameterSpec> parameters(const ModelSpec& spec);

// The parts that a model is called by, in the order of the forward pass: "embed", "layers.I", "head" (with the final
// norm). A tied parameter is in both parts that use it, under the name whose storage it is.
struct ModelPart {
  std::string name;
  std::vector<std::string> parameters;  // names
};
std::vector<ModelPart> parts(const ModelSpec& spec);

// Sum of counts, tied parameters once.
int64_t parameter_count(const ModelSpec& spec);

// Published models by name ("gpt2-124m", "llama-3-8b", ...) and our small ones ("gpt-tiny", "llama-tiny").
std::vector<std::string> preset_names();
ModelSpec preset(const std::string& name);  // throws InvalidArgument with the nearest name

// Every violated rule of the model alone.
std::vector<Problem> validate(const ModelSpec& spec);

}  // namespace lockstep::spec
