// Collectives whose data came with the announcements, or is read and written where it lies.
#include "lockstep/comm/host/execution.h"

namespace lockstep::comm::host {

void Collectives::Execution::move_data() {
  if (call.operation == Operation::barrier) return;
  if (!is_native()) {
    move_by_program();
  } else if (is_inline()) {
    move_directly();
  } else if (all_reachable()) {
    move_directly();
    sync();
  } else {
    move_staged();
  }
}

void Collectives::Execution::move_directly() {
  switch (call.operation) {
    case Operation::all_reduce:
      if (!is_inline()) return reduce_share();
      return reduce_to(output(), [&](int r) { return slot(r).data; }, count());
    case Operation::reduce:
      if (!is_inline()) return reduce_share();
      if (is_root()) reduce_to(output(), [&](int r) { return slot(r).data; }, count());
      return;
    case Operation::reduce_scatter: {
      const Part part = part_of(rank());
      return reduce_to(output(), [&](int r) { return input_of(r) + part.begin * element_bytes(); }, part.count);
    }
    case Operation::all_gather:
      return gather_parts();
    case Operation::gather:
      if (is_root()) gather_parts();
      return;
    case Operation::broadcast:
      if (!is_root()) copy(output(), input_of(call.peer), bytes(), streaming());
      return;
    case Operation::scatter:
      return copy(output(), input_of(call.peer) + rank() * bytes(), bytes(), streaming());
    case Operation::all_to_all:
      return exchange_parts();
    case Operation::barrier:
    case Operation::send:
    case Operation::receive:
      return;
  }
}

// Each rank adds a share of the elements, and writes it to all who want it.
void Collectives::Execution::reduce_share() {
  const Part share = share_of(rank(), size(), count(), element_bytes());
  const int64_t offset = share.begin * element_bytes();
  if (call.operation == Operation::all_reduce) {
    return reduce_to_all([&](int r) { return output_of(r) + offset; }, share.count, streaming());
  }
  reduce_to(output_of(call.peer) + offset, [&](int r) { return input_of(r) + offset; }, share.count);
}

void Collectives::Execution::gather_parts() {
  const bool past_caches = streaming();
  for (int r = 0; r < size(); ++r) {
    const Part part = part_of(r);
    copy(output() + part.begin * element_bytes(), input_of(r), part.count * element_bytes(), past_caches);
  }
}

void Collectives::Execution::exchange_parts() {
  const bool past_caches = streaming();
  for (int from = 0; from < size(); ++from) {
    const Part part = sent_part(from, rank());
    copy(output() + received_part(rank(), from).begin * element_bytes(), input_of(from) + part.begin * element_bytes(),
         part.count * element_bytes(), past_caches);
  }
}

}  // namespace lockstep::comm::host
