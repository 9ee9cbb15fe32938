// What the ranks of a pipeline tell one another before a step: the first rank has the inputs, the last the targets, and
// all have to know whether the step can be made, so that none starts one that another refuses.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/schedule/table.h"

namespace lockstep::parallel {

// Inputs or targets of a step.
struct Microbatches {
  int64_t rows = -1;              // of all of them; -1: there are none on this rank
  std::vector<at::Tensor> parts;  // empty for rows that cannot be split
};
Microbatches microbatches_of(const at::Tensor& batch, int64_t count);
Microbatches microbatches_of(std::vector<at::Tensor> parts);

class StepAgreement {
 public:
  // Both must outlive this.
  StepAgreement(const schedule::Table& table, comm::ProcessGroup& group) : table_(table), group_(group) {}

  // One small all_gather. Inputs count on the rank of the first stage, targets on that of the last.
  //   returns  whether shapes have to be announced: in the first step, when the inputs' types or shapes are not those
  //   of
  //            the step before, and when a rank says that shapes vary
  //   throws   the same on every rank: ProtocolMismatch when tables differ; InvalidArgument when inputs or targets are
  //            missing, cannot be split, or differ in rows
  bool agree(const Microbatches& inputs, const Microbatches& targets, bool shapes_vary);

 private:
  const schedule::Table& table_;
  comm::ProcessGroup& group_;
  int64_t announced_key_ = 0;
  bool announced_ = false;
};

}  // namespace lockstep::parallel
