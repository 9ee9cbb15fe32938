#include "lockstep/parallel/tensor/vocabulary.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "lockstep/distributed/collectives.h"
#include "lockstep/parallel/tensor/linear.h"

namespace lockstep::parallel {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// The rows of the vocabulary that a rank holds and that are no padding.
mesh::Range held_rows(int64_t vocab, int64_t slice, int rank) {
  const int64_t first = std::min(vocab, rank * slice);
  return {first, std::clamp<int64_t>(vocab - first, 0, slice)};
}

void require_tokens(const Tensor& tokens, int64_t vocab, const char* name) {
  if (tokens.numel() == 0) return;
  const int64_t low = tokens.min().item<int64_t>(), high = tokens.max().item<int64_t>();
  if (low >= 0 && high < vocab) return;
  throw InvalidArgument(Problem{name, text(low < 0 ? low : high), text("must be from 0 to ", vocab - 1), ""}.message());
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  // logits_TP, targets_T -> losses_T
  static Tensor forward(AutogradContext* context, const Tensor& logits_TP, const Tensor& targets_T, mesh::Range rows,
                        int64_t ignored, comm::ProcessGroup* group, const std::string& tag) {
    const at::ScalarType type = logits_TP.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    Tensor exponentials_TP = logits_TP.to(type, /*non_blocking=*/false, /*copy=*/true);
    exponentials_TP.narrow(1, rows.size, logits_TP.size(1) - rows.size).fill_(-std::numeric_limits<double>::infinity());
    Tensor max_T = exponentials_TP.amax(1);
    all_reduce(max_T, *group, Reduction::max, {.tag = "forward max " + tag});

    const Tensor owned_T = (targets_T >= rows.offset).logical_and(targets_T < rows.offset + rows.size);
    const Tensor column_T1 = (targets_T - rows.offset).masked_fill(owned_T.logical_not(), 0).unsqueeze(1);
    Tensor sums_2T = at::empty({2, targets_T.size(0)}, max_T.options());
    sums_2T[1] = (exponentials_TP.gather(1, column_T1).squeeze(1) - max_T).masked_fill(owned_T.logical_not(), 0);
    exponentials_TP.sub_(max_T.unsqueeze(1)).exp_();
    sums_2T[0] = exponentials_TP.sum(1);
    all_reduce(sums_2T, *group, Reduction::sum, {.tag = "forward sum " + tag});

    context->save_for_backward({exponentials_TP.div_(sums_2T[0].unsqueeze(1)), column_T1, owned_T});
    context->saved_data["type"] = logits_TP.scalar_type();
    const Tensor ignored_T = targets_T == ignored;
    context->saved_data["ignored"] = ignored_T;
    return (sums_2T[0].log() - sums_2T[1]).masked_fill_(ignored_T, 0);
  }

  // softmax minus one-hot, of this rank's columns.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list kept = context->get_saved_variables();
    const Tensor gradient_T1 = gradients[0].masked_fill(context->saved_data["ignored"].toTensor(), 0).unsqueeze(1);
    Tensor result_TP = kept[0] * gradient_T1;
    result_TP.scatter_add_(1, kept[1], gradient_T1.neg() * kept[2].unsqueeze(1));
    return {result_TP.to(context->saved_data["type"].toScalarType()), {}, {}, {}, {}, {}};
  }
};

}  // namespace

int64_t vocabulary_slice(int64_t vocab, int ranks) {
  return (vocab + ranks - 1) / ranks;
}

Tensor vocab_parallel_embedding(const Tensor& tokens, const Tensor& table, int64_t vocab, const TensorGroup& group,
                                const std::string& tag) {
  const int64_t slice = vocabulary_slice(vocab, group.size());
  if (table.size(0) != slice) {
    throw InvalidArgument(Problem{"table", text(table.size(0), " rows"),
                                  text("each of ", group.size(), " ranks holds ", slice, " of ", vocab), ""}
                              .message());
  }
  require_tokens(tokens, vocab, "token");
  const mesh::Range rows = held_rows(vocab, slice, group.rank());
  const Tensor elsewhere = (tokens < rows.offset).logical_or(tokens >= rows.offset + rows.size);
  const Tensor found = at::embedding(table, (tokens - rows.offset).masked_fill(elsewhere, 0));
  return leave_split(found.masked_fill(elsewhere.unsqueeze(-1), 0), group, tag);
}

Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& targets, const VocabularyOptions& options,
                                    comm::ProcessGroup& group, const std::string& tag) {
  const int64_t slice = vocabulary_slice(options.vocab, group.size());
  if (logits.size(-1) != slice) {
    throw InvalidArgument(Problem{
        "logits", text(logits.size(-1), " columns"),
        text("each of ", group.size(), " ranks gives its own ", slice, " of ", options.vocab, ", not gathered ones"),
        ""}
                              .message());
  }
  require_tokens(targets.masked_fill(targets == options.ignored, 0), options.vocab, "target");
  return CrossEntropy::apply(logits.reshape({-1, slice}), targets.flatten(),
                             held_rows(options.vocab, slice, group.rank()), options.ignored, &group, tag)
      .view_as(targets);
}

}  // namespace lockstep::parallel
