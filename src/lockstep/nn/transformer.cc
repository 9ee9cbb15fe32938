#include "lockstep/nn/transformer.h"

#include <torch/torch.h>

#include "lockstep/spec/recompute.h"

namespace lockstep::nn {

using at::Tensor;

namespace {

// The child module `name` of `parent`, made when there is none.
std::shared_ptr<torch::nn::Module> child(torch::nn::Module& parent, const std::string& name) {
  const auto children = parent.named_children();
  if (const auto* found = children.find(name)) return *found;
  return parent.register_module(name, std::make_shared<torch::nn::Module>());
}

// [B,S,N*D] -> [B,N,S,D]
Tensor split_heads(const Tensor& x, int64_t head_size) {
  return x.unflatten(-1, {-1, head_size}).transpose(1, 2);
}

// in: up, or gate and up.
Tensor activate(spec::Activation activation, const std::vector<Tensor>& in) {
  switch (activation) {
    case spec::Activation::gelu:
      return at::gelu(in[0]);
    case spec::Activation::gelu_tanh:
      return at::gelu(in[0], "tanh");
    case spec::Activation::swiglu:
      return at::silu(in[0]) * in[1];
  }
  LOCKSTEP_CHECK(false, "unknown activation");
}

}  // namespace

Transformer::Transformer(const spec::ModelSpec& model, std::vector<Parameter> parameters)
    : torch::nn::Module("Transformer"), model_(model), parameters_(std::move(parameters)) {
  LOCKSTEP_CHECK(!parameters_.empty(), "a model without parameters");
  for (const Parameter& parameter : parameters_) register_by_name(parameter);
  token_table_VH_ = find("embed.tokens.weight");
  position_table_SH_ = find("embed.positions.weight");
  for (int64_t layer = 0; layer < model_.layers; ++layer) layers_.push_back(find_layer(layer));
  final_norm_ = {find("final_norm.weight"), find("final_norm.bias")};
  head_VH_ = model_.tie_embeddings ? token_table_VH_ : find("head.weight");
  if (model_.position == spec::Position::rope) {
    rope_ =
        make_rope_tables(model_.sequence, model_.head_size(), model_.rope_theta, parameters_.front().tensor.options());
  }
}

Transformer::Transformer(const spec::ModelSpec& model, uint64_t seed, TensorPlace place)
    : Transformer(model, create_parameters(spec::parameters(model), seed, place)) {}

// torch allows no dots in a parameter's name: each part of a dotted name is a child module.
void Transformer::register_by_name(const Parameter& parameter) {
  torch::nn::Module* module = this;
  std::string_view rest = parameter.spec.name;
  for (size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
    module = child(*module, std::string(rest.substr(0, dot))).get();
    rest.remove_prefix(dot + 1);
  }
  module->register_parameter(std::string(rest), parameter.tensor, parameter.tensor.requires_grad());
}

Tensor Transformer::find(const std::string& name) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.spec.name == name) return parameter.tensor;
  }
  return {};
}

Transformer::Layer Transformer::find_layer(int64_t layer) const {
  const std::string prefix = text("layers.", layer, ".");
  const auto norm = [&](const std::string& name) {
    return NormWeights{find(prefix + name + ".weight"), find(prefix + name + ".bias")};
  };
  const auto projection = [&](const std::string& name) {
    return Projection{find(prefix + name + ".weight"), find(prefix + name + ".bias")};
  };
  Layer found{
      .attention_norm = norm("attention_norm"),
      .ffn_norm = norm("ffn_norm"),
      .query_key_value = {projection("attention.query"), projection("attention.key"), projection("attention.value")},
      .attention_output = projection("attention.output"),
      .ffn_in = {projection("ffn.up")},
      .ffn_down = projection("ffn.down")};
  if (model_.activation == spec::Activation::swiglu) {
    found.ffn_in.insert(found.ffn_in.begin(), projection("ffn.gate"));
  }
  return found;
}

Tensor Transformer::normalise(const Tensor& x_BSH, const NormWeights& norm) const {
  const int64_t width = norm.weight.size(0);
  if (model_.norm == spec::Norm::rmsnorm) return at::rms_norm(x_BSH, {width}, norm.weight, model_.norm_eps);
  return at::layer_norm(x_BSH, {width}, norm.weight, norm.bias, model_.norm_eps);
}

Tensor Transformer::dropout(const Tensor& x_BSH, const Context& context, const Site& site) const {
  if (model_.dropout == 0 || !is_training()) return x_BSH;
  return context.seams.dropout.dropout(x_BSH, model_.dropout, site);
}

Tensor Transformer::embed(const Tensor& tokens_BS, const Context& context) const {
  return context.around("embed", tokens_BS, [&](const Tensor& tokens) { return embed_tokens(tokens, context); });
}

Tensor Transformer::embed_tokens(const Tensor& tokens_BS, const Context& context) const {
  const auto site = [&](std::string_view name) { return Site{-1, context.microbatch, name}; };
  Tensor positions_SH;
  if (model_.position == spec::Position::learned) {
    const Tensor positions_S = context.seams.attention.positions(tokens_BS.size(1), tokens_BS.device());
    positions_SH = at::embedding(position_table_SH_, positions_S);
  }
  const Tensor hidden_BSH = context.seams.loss.embed(tokens_BS, token_table_VH_, positions_SH, site("embed.tokens"));
  return dropout(hidden_BSH, context, site("embed"));
}

Tensor Transformer::block(int64_t layer, const Tensor& hidden_BSH, const Context& context) const {
  return context.around(text("layers.", layer), hidden_BSH,
                        [&](const Tensor& hidden) { return run_block(layer, hidden, context); });
}

Tensor Transformer::run_block(int64_t layer, const Tensor& hidden_BSH, const Context& context) const {
  const Layer& weights = layers_.at(static_cast<size_t>(layer));
  const auto site = [&](std::string_view name) { return Site{static_cast<int>(layer), context.microbatch, name}; };
  const Tensor attended_BSH = attention(weights, normalise(hidden_BSH, weights.attention_norm), context, site);
  const Tensor middle_BSH = hidden_BSH + dropout(attended_BSH, context, site("attention"));
  const Tensor ffn_BSH = ffn(weights, normalise(middle_BSH, weights.ffn_norm), context, site);
  return middle_BSH + dropout(ffn_BSH, context, site("ffn"));
}

Tensor Transformer::attention(const Layer& layer, const Tensor& x_BSH, const Context& context,
                              const SiteMaker& site) const {
  const Seams& seams = context.seams;
  const std::vector<Tensor> projected =
      seams.linear.linears(x_BSH, layer.query_key_value, Split::columns, site("attention.query_key_value"));
  Tensor q_BNSD = split_heads(projected[0], model_.head_size());
  Tensor k_BKSD = split_heads(projected[1], model_.head_size());
  const Tensor v_BKSD = split_heads(projected[2], model_.head_size());
  if (model_.position == spec::Position::rope) {
    const Tensor positions_S = seams.attention.positions(q_BNSD.size(2), q_BNSD.device());
    const RopeTables here{rope_.cos.index_select(0, positions_S), rope_.sin.index_select(0, positions_S)};
    q_BNSD = apply_rope(q_BNSD, here);
    k_BKSD = apply_rope(k_BKSD, here);
  }
  const Tensor mixed_BNSD = attend({q_BNSD, k_BKSD, v_BKSD}, context, site("attention"));
  return seams.linear.linear(mixed_BNSD.transpose(1, 2).flatten(2), layer.attention_output, Split::rows,
                             site("attention.output"));
}

Tensor Transformer::attend(const std::vector<Tensor>& query_key_value, const Context& context, const Site& site) const {
  AttentionSeam& attention = context.seams.attention;
  const SegmentFunction core = [&attention, site](const std::vector<Tensor>& in) {
    return std::vector{attention.attend(in[0], in[1], in[2], site)};
  };
  if (context.recomputation.mode != spec::Recompute::selective) return core(query_key_value).front();
  return recompute(core, query_key_value, context.recomputation.begin_rerun).front();
}

Tensor Transformer::ffn(const Layer& layer, const Tensor& x_BSH, const Context& context, const SiteMaker& site) const {
  LinearSeam& linear = context.seams.linear;
  const std::vector<Tensor> in = linear.linears(x_BSH, layer.ffn_in, Split::columns, site("ffn.in"));
  return linear.linear(activate(model_.activation, in), layer.ffn_down, Split::rows, site("ffn.down"));
}

Tensor Transformer::blocks(mesh::Range layers, const Tensor& hidden_BSH, const Context& context) const {
  Tensor result_BSH = hidden_BSH;
  for (const auto& [part, recomputed] : spec::recompute_segments(context.recomputation.mode, layers)) {
    // The context by value: the function runs again when this call is long over.
    const SegmentFunction segment = [this, part, context](const std::vector<Tensor>& in) {
      if (part.size == 1) return std::vector{run_block(part.offset, in.front(), context)};
      Tensor out_BSH = in.front();
      for (int64_t i = 0; i < part.size; ++i) out_BSH = block(part.offset + i, out_BSH, context);
      return std::vector{out_BSH};
    };
    const auto run_segment = [&](const Tensor& in_BSH) {
      return recomputed ? recompute(segment, {in_BSH}, context.recomputation.begin_rerun).front()
                        : segment({in_BSH}).front();
    };
    // What stands around a block alone stands around its rerun too.
    result_BSH = part.size == 1 ? context.around(text("layers.", part.offset), result_BSH, run_segment)
                                : run_segment(result_BSH);
  }
  return result_BSH;
}

Tensor Transformer::hidden(const Tensor& tokens_BS, const Context& context) const {
  return blocks({0, model_.layers}, embed(tokens_BS, context), context);
}

Tensor Transformer::logits(const Tensor& hidden_BSH, const Context& context) const {
  return context.around("head", hidden_BSH, [&](const Tensor& hidden) {
    return context.seams.linear.linear(normalise(hidden, final_norm_), {head_VH_, {}}, Split::columns,
                                       {-1, context.microbatch, "head"});
  });
}

Tensor Transformer::token_losses(const Tensor& hidden_BSH, const Tensor& targets_BS, const Context& context) const {
  return context.around("head", hidden_BSH, [&](const Tensor& hidden) {
    return context.seams.loss.token_losses(normalise(hidden, final_norm_), head_VH_, targets_BS,
                                           {-1, context.microbatch, "head"});
  });
}

Tensor Transformer::loss_sum(const Tensor& tokens_BS, const Tensor& targets_BS, const Context& context) const {
  return token_losses(hidden(tokens_BS, context), targets_BS, context).sum();
}

int64_t count_valid(const Tensor& targets_BS) {
  return (targets_BS != kIgnoredTarget).sum().item<int64_t>();
}

}  // namespace lockstep::nn
