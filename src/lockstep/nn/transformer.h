// One decoder-only transformer: GPT-2 and Llama by configuration. It is created from a list of parameters, whole or
// what one rank or pipeline stage holds, and computes with whatever seams a call brings. Its pieces can be called one
// by one:
//
//   embed -> block 0 -> ... -> block n-1 -> token_losses (or logits)
//
// Letters in names of tensors: see seams.h.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/nn/parameters.h"
#include "lockstep/nn/recompute.h"
#include "lockstep/nn/rope.h"
#include "lockstep/nn/seams.h"
#include "lockstep/spec/model.h"
#include "lockstep/spec/plan.h"

namespace lockstep::nn {

// What backward computes again.
struct Recomputation {
  spec::Recompute mode = spec::Recompute::none;
  BeginRerun begin_rerun;
};

// What a forward pass is given besides its input.
struct Context {
  Seams seams;
  MicrobatchContext microbatch;
  Recomputation recomputation = {};
  PartSeam* parts = nullptr;  // none: parts are just called

  at::Tensor around(std::string_view part, const at::Tensor& input,
                    const std::function<at::Tensor(const at::Tensor&)>& forward) const {
    return parts == nullptr ? forward(input) : parts->run(part, input, forward);
  }
};

class Transformer : public torch::nn::Module {
 public:
  // `parameters` may be a part of the model (a stage's layers, a rank's slices): only pieces whose parameters are in it
  // can be called. Names registered with torch are the spec's, so named_parameters() gives the list's names.
  Transformer(const spec::ModelSpec& model, std::vector<Parameter> parameters);

  // The whole model with initial values.
  Transformer(const spec::ModelSpec& model, uint64_t seed, TensorPlace place = {});

  // In the order of the forward pass; a tied head is not repeated.
  const std::vector<Parameter>& parameter_list() const { return parameters_; }
  const spec::ModelSpec& model() const { return model_; }

  // tokens_BS int64, S at most the model's sequence -> [B,S,H]
  at::Tensor embed(const at::Tensor& tokens_BS, const Context& context) const;

  // Layer `layer`, counted over the whole model: [B,S,H] -> [B,S,H]
  at::Tensor block(int64_t layer, const at::Tensor& hidden_BSH, const Context& context) const;

  // Consecutive layers, with what the context says about recomputation: [B,S,H] -> [B,S,H]
  at::Tensor blocks(mesh::Range layers, const at::Tensor& hidden_BSH, const Context& context) const;

  // The final norm and the head: [B,S,H] -> [B,S,V] (the linear seam's columns of V where it splits them).
  at::Tensor logits(const at::Tensor& hidden_BSH, const Context& context) const;

  // The final norm, the head and the cross entropy of each token, zero where targets_BS is kIgnoredTarget -> [B,S]
  at::Tensor token_losses(const at::Tensor& hidden_BSH, const at::Tensor& targets_BS, const Context& context) const;

  // embed and every block: [B,S] -> [B,S,H]
  at::Tensor hidden(const at::Tensor& tokens_BS, const Context& context) const;

  // Sum of the losses of the valid tokens, a scalar. Divide by the valid tokens of the whole global batch, so that
  // neither accumulation nor data parallelism changes the result; without valid tokens it is zero with zero gradients.
  at::Tensor loss_sum(const at::Tensor& tokens_BS, const at::Tensor& targets_BS, const Context& context) const;

 private:
  struct NormWeights {
    at::Tensor weight, bias;
  };
  struct Layer {
    NormWeights attention_norm, ffn_norm;
    std::vector<Projection> query_key_value;  // in this order
    Projection attention_output;
    std::vector<Projection> ffn_in;  // up, or gate and up
    Projection ffn_down;
  };

  // embed and block, without what stands around them.
  at::Tensor embed_tokens(const at::Tensor& tokens_BS, const Context& context) const;
  at::Tensor run_block(int64_t layer, const at::Tensor& hidden_BSH, const Context& context) const;

  using SiteMaker = std::function<Site(std::string_view)>;  // a name of the layer at hand -> its site

  void register_by_name(const Parameter& parameter);
  at::Tensor find(const std::string& name) const;  // undefined when the list lacks it
  Layer find_layer(int64_t layer) const;
  at::Tensor normalise(const at::Tensor& x_BSH, const NormWeights& norm) const;
  at::Tensor attention(const Layer& layer, const at::Tensor& x_BSH, const Context& context,
                       const SiteMaker& site) const;
  at::Tensor attend(const std::vector<at::Tensor>& query_key_value, const Context& context, const Site& site) const;
  at::Tensor ffn(const Layer& layer, const at::Tensor& x_BSH, const Context& context, const SiteMaker& site) const;
  at::Tensor dropout(const at::Tensor& x_BSH, const Context& context, const Site& site) const;

  spec::ModelSpec model_;
  std::vector<Parameter> parameters_;
  at::Tensor token_table_VH_, position_table_SH_, head_VH_;
  NormWeights final_norm_;
  std::vector<Layer> layers_;
  RopeTables rope_;  // of every position; undefined with learned positions
};

// Tokens that count: targets other than kIgnoredTarget.
int64_t count_valid(const at::Tensor& targets_BS);

}  // namespace lockstep::nn
