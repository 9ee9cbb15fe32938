// Where ranks may meet inside the model. nn/ knows nothing of ranks: at these places it calls an interface, one per
// concern, whose default is one device; each folder of parallel/ supplies one of the others.
//
//   tokens -> embed -> dropout -> [ norm -> linears(q,k,v) -> attend -> linear -> dropout -> + ] x layers -> norm ->
//   losses
//
// Letters in names of tensors: B sequences, S positions, H hidden, V vocabulary, N query heads, K key/value heads, D
// head size, O outputs of a linear. All of them are what this rank holds, so widths are read from the tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/spec/model.h"

namespace lockstep::nn {

using spec::kIgnoredTarget;

// Which part of the run a micro-batch is. Random masks are keyed by it, never by the rank that computes them.
struct MicrobatchContext {
  int index = 0;             // within this rank's step: 0, 1, ...
  int64_t step = 0;          // of the run
  int64_t first_sample = 0;  // place in the global batch of the micro-batch's first sequence; the others follow it
};

// Who calls a seam.
struct Site {
  int layer = -1;  // -1: before the first or after the last layer
  MicrobatchContext microbatch;
  std::string_view name;  // "attention.query", "ffn.down", ...: unique within a layer
};

// How a weight [O,H] is split over ranks: by its outputs, by its inputs, or not at all.
enum class Split { replicated, columns, rows };

// weight [O,H]; bias [O], undefined when there is none.
struct Projection {
  at::Tensor weight;
  at::Tensor bias;
};

class LinearSeam {
 public:
  virtual ~LinearSeam() = default;

  // y_i = x weight_i^T + bias_i for several weights over one input, so that ranks meet once for all of them.
  //   x        [..., H]
  //   returns  one [..., O_i] per projection
  virtual std::vector<at::Tensor> linears(const at::Tensor& x, std::span<const Projection> projections, Split split,
                                          const Site& site) = 0;

  at::Tensor linear(const at::Tensor& x, const Projection& projection, Split split, const Site& site) {
    return linears(x, {&projection, 1}, split, site).front();
  }
};

class LossSeam {
 public:
  virtual ~LossSeam() = default;

  // The beginning of the residual stream.
  //   tokens_BS int64, table_VH, positions_SH (of learned positions, else undefined)  ->  [B,S,H]
  virtual at::Tensor embed(const at::Tensor& tokens_BS, const at::Tensor& table_VH, const at::Tensor& positions_SH,
                           const Site& site) = 0;

  // Cross entropy of each token, in fp32 where hidden_BSH is bf16 or fp16. A target of kIgnoredTarget contributes zero,
  // and zero gradient.
  //   hidden_BSH, head_VH, targets_BS int64  ->  [B,S]
  virtual at::Tensor token_losses(const at::Tensor& hidden_BSH, const at::Tensor& head_VH, const at::Tensor& targets_BS,
                                  const Site& site) = 0;
};

class AttentionSeam {
 public:
  virtual ~AttentionSeam() = default;

  // Causal softmax(q k^T / sqrt(D)) v; N is a multiple of K, and query head n reads key/value head n / (N / K).
  //   q_BNSD, k_BKSD, v_BKSD  ->  [B,N,S,D]
  virtual at::Tensor attend(const at::Tensor& q_BNSD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
                            const Site& site) = 0;

  // Places in their sequence of the `sequence` positions that this rank holds: [S] int64.
  virtual at::Tensor positions(int64_t sequence, at::Device device) = 0;
};

class DropoutSeam {
 public:
  virtual ~DropoutSeam() = default;

  // x_BSH with elements zeroed with probability p and the rest divided by 1 - p; 0 < p < 1. The mask depends on seed,
  // step, site and the element's global place (sample, position, feature).
  virtual at::Tensor dropout(const at::Tensor& x_BSH, double p, const Site& site) = 0;
};

// Stands around whole parts of the model: what must happen before a part is used and after, in forward and backward.
// A call may bring none.
class PartSeam {
 public:
  virtual ~PartSeam() = default;

  // forward(input), the part's output. `part` is the name of a spec::ModelPart; its parameters are read in `forward`
  // alone. `input` is what gradients are passed on to, if it requires any.
  virtual at::Tensor run(std::string_view part, const at::Tensor& input,
                         const std::function<at::Tensor(const at::Tensor&)>& forward) = 0;
};

// One of each, not owned.
struct Seams {
  LinearSeam& linear;
  LossSeam& loss;
  AttentionSeam& attention;
  DropoutSeam& dropout;
};

}  // namespace lockstep::nn
