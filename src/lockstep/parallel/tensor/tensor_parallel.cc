#include "lockstep/parallel/tensor/tensor_parallel.h"

#include <torch/torch.h>

#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/parallel/tensor/vocabulary.h"

namespace lockstep::parallel {

using at::Tensor;

namespace {

SplitDims split_dims(const spec::PlacementRules& rules) {
  return {.vocab = rules.contains("vocab"), .heads = rules.contains("heads"), .ffn = rules.contains("ffn")};
}

TensorGroupOptions group_options(const spec::RunPlan& plan) {
  return {.sequence_parallel = plan.parallel.sequence_parallel,
          .sequence = plan.model.sequence,
          .overlap = plan.parallel.overlap};
}

// "layers.3.ffn.down", "head"
std::string tag_of(const nn::Site& site) {
  return site.layer < 0 ? std::string(site.name) : text("layers.", site.layer, ".", site.name);
}

}  // namespace

bool TensorLinear::is_split(const nn::Site& site) const {
  if (site.name.starts_with("attention")) return dims_.heads;
  return site.name.starts_with("ffn") ? dims_.ffn : dims_.vocab;
}

std::vector<Tensor> TensorLinear::linears(const Tensor& x, std::span<const nn::Projection> projections, nn::Split split,
                                          const nn::Site& site) {
  if (group_.size() == 1 || split == nn::Split::replicated || !is_split(site)) {
    return local_.linears(x, projections, split, site);
  }
  if (split == nn::Split::columns) return column_linears(x, projections, group_, tag_of(site), deferred_);
  LOCKSTEP_CHECK(projections.size() == 1, tag_of(site), ": several rows layers over one input");
  return {row_linear(x, projections.front(), group_, tag_of(site), deferred_)};
}

Tensor TensorLoss::embed(const Tensor& tokens_BS, const Tensor& table_VH, const Tensor& positions_SH,
                         const nn::Site& site) {
  if (group_.size() == 1 || !dims_.vocab) return local_.embed(tokens_BS, table_VH, positions_SH, site);
  const Tensor tokens_BSH = vocab_parallel_embedding(tokens_BS, table_VH, vocab_, group_, tag_of(site));
  if (!positions_SH.defined()) return tokens_BSH;
  if (!group_.options().sequence_parallel) return tokens_BSH + positions_SH;
  return tokens_BSH + positions_SH.narrow(0, group_.positions().offset, group_.positions().size);
}

Tensor TensorLoss::token_losses(const Tensor& hidden_BSH, const Tensor& head_VH, const Tensor& targets_BS,
                                const nn::Site& site) {
  if (group_.size() == 1 || !dims_.vocab) return local_.token_losses(hidden_BSH, head_VH, targets_BS, site);
  const nn::Projection head{head_VH, {}};
  const Tensor logits_BSP = column_linears(hidden_BSH, {&head, 1}, group_, tag_of(site), deferred_).front();
  return vocab_parallel_cross_entropy(logits_BSP, targets_BS, {.vocab = vocab_}, group_.ranks(), tag_of(site));
}

Tensor TensorDropout::dropout(const Tensor& x_BSH, double p, const nn::Site& site) {
  if (!group_.options().sequence_parallel) {
    return nn::keyed_dropout(x_BSH, p, site, seed_, {.of = x_BSH.size(1)});
  }
  return nn::keyed_dropout(x_BSH, p, site, seed_,
                           {.first = group_.positions().offset, .of = group_.options().sequence});
}

TensorParallel::TensorParallel(const spec::RunPlan& plan, comm::ProcessGroup& group, nn::Deferring deferring)
    : group_(group, group_options(plan)),
      linear_(group_, split_dims(spec::placement_rules(plan)), deferring.weights),
      loss_(group_, split_dims(spec::placement_rules(plan)), plan.model.vocab, deferring.of_head()),
      dropout_(group_, static_cast<uint64_t>(plan.train.seed)) {}

}  // namespace lockstep::parallel
