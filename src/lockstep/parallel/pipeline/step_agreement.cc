#include "lockstep/parallel/pipeline/step_agreement.h"

#include <ATen/ATen.h>

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/parallel/pipeline/split_batch.h"

namespace lockstep::parallel {

namespace {

int64_t hash_of(const std::string& words) {
  return static_cast<int64_t>(std::hash<std::string>{}(words));
}

// What one rank says.
struct Words {
  int64_t table = 0, shapes_vary = 0;
  int64_t input_rows = -1, input_parts = 0, input_rows_key = 0, input_key = 0;
  int64_t target_rows = -1, target_parts = 0, target_rows_key = 0;
};
constexpr int64_t kWords = sizeof(Words) / sizeof(int64_t);

int64_t rows_key(const Microbatches& batch) {
  std::string rows;
  for (const at::Tensor& part : batch.parts) rows += text(part.size(0), " ");
  return hash_of(rows);
}

int64_t key(const Microbatches& batch) {
  std::string forms;
  for (const at::Tensor& part : batch.parts) forms += text(at::toString(part.scalar_type()), part.sizes(), " ");
  return hash_of(forms);
}

void check_parts(const char* what, int64_t rows, int64_t parts, int64_t microbatches, int rank, const char* stage) {
  if (rows < 0) {
    throw InvalidArgument(text(what, ": no tensor with a dim 0 on rank ", rank, ", which has the ", stage, " stage"));
  }
  if (parts == microbatches) return;
  if (parts > 0) {
    throw InvalidArgument(
        Problem{what, text(parts, " micro-batches"), "must be as many as the schedule's", text(microbatches)}
            .message());
  }
  throw InvalidArgument(Problem{"microbatches", text(microbatches),
                                text("every micro-batch needs a row, and ", what, " have ", rows),
                                rows > 0 ? text(rows) : ""}
                            .message());
}

}  // namespace

Microbatches microbatches_of(const at::Tensor& batch, int64_t count) {
  if (!batch.defined() || batch.dim() == 0) return {};
  return {batch.size(0), batch.size(0) < count ? std::vector<at::Tensor>() : split_evenly(batch, count, "the batch")};
}

Microbatches microbatches_of(std::vector<at::Tensor> parts) {
  Microbatches result{.rows = parts.empty() ? -1 : 0};
  for (const at::Tensor& part : parts) {
    if (!part.defined() || part.dim() == 0) return {};
    result.rows += part.size(0);
  }
  result.parts = std::move(parts);
  return result;
}

bool StepAgreement::agree(const Microbatches& inputs, const Microbatches& targets, bool shapes_vary) {
  Words own{.table = hash_of(text(to_string(table_), join(table_.rank_of_stage), table_.microbatches)),
            .shapes_vary = shapes_vary,
            .input_rows = inputs.rows,
            .input_parts = static_cast<int64_t>(inputs.parts.size()),
            .input_rows_key = rows_key(inputs),
            .input_key = key(inputs),
            .target_rows = targets.rows,
            .target_parts = static_cast<int64_t>(targets.parts.size()),
            .target_rows_key = rows_key(targets)};
  std::vector<Words> all(static_cast<size_t>(group_.size()));
  at::Tensor gathered = at::from_blob(all.data(), {group_.size() * kWords}, at::kLong);
  all_gather_into_tensor(gathered, at::from_blob(&own, {kWords}, at::kLong), group_, {.tag = "pipeline step"});

  bool vary = false;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    vary = vary || all[rank].shapes_vary != 0;
    if (all[rank].table == all.front().table) continue;
    throw ProtocolMismatch(text("rank ", group_.rank(), ": ranks 0 and ", rank, " of group '", group_.name(),
                                "' have different schedules; all ranks must make the same table"));
  }
  const int first = table_.rank_of_stage.front(), last = table_.rank_of_stage.back();
  const Words& in = all[static_cast<size_t>(first)];
  const Words& out = all[static_cast<size_t>(last)];
  check_parts("inputs", in.input_rows, in.input_parts, table_.microbatches, first, "first");
  check_parts("targets", out.target_rows, out.target_parts, table_.microbatches, last, "last");
  if (in.input_rows_key != out.target_rows_key) {
    throw InvalidArgument(Problem{"targets", text(out.target_rows, " rows"),
                                  "each micro-batch's must be as many as the inputs'", text(in.input_rows, " rows")}
                              .message());
  }
  const bool announce = !announced_ || vary || in.input_key != announced_key_;
  announced_ = true;
  announced_key_ = in.input_key;
  return announce;
}

}  // namespace lockstep::parallel
