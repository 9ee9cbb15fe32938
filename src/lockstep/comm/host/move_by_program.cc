// Collectives as their step programs say.
#include "lockstep/comm/host/execution.h"

namespace lockstep::comm::host {

void Collectives::Execution::move_by_program() {
  std::vector<int64_t> sent_counts;
  for (int from = 0; from < size() && place.call.counts_differ_by_rank(); ++from) {
    for (int to = 0; to < size(); ++to) sent_counts.push_back(slot(from).counts[to]);
  }
  const int root = has_root(call.operation) ? call.peer : 0;
  const collective::Program& program = group.programs_.program(call.operation, place.call.algorithm, root);
  group.traffic_ += run_program(
      program, piece_sizes_of(program, call, sent_counts), call, rank(), group.workspace_,
      [this](std::span<const Message> round) { group.steps_.run_round(round, place, deadline.left_s(), patience); });
}

}  // namespace lockstep::comm::host
