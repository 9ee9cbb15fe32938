// Who gives what to whom in a collective, from what the ranks have announced.
#include <numeric>

#include "lockstep/comm/host/execution.h"

namespace lockstep::comm::host {
namespace {

Part part_in(Counts counts, int r) {
  const auto own = counts.begin() + r;
  return {std::accumulate(counts.begin(), own, int64_t{0}), *own};
}

int64_t sum(const SharedCounts& counts, int first, int end) {
  int64_t result = 0;
  for (int i = first; i < end; ++i) result += counts[i];
  return result;
}

}  // namespace

Part Collectives::Execution::part_of(int r) const {
  if (!place.call.uneven) return {r * count(), count()};
  return part_in(place.call.counts, r);
}

Part Collectives::Execution::sent_part(int from, int to) const {
  if (!place.call.uneven) return {to * (count() / size()), count() / size()};
  const SharedCounts& counts = slot(from).counts;
  return {sum(counts, 0, to), counts[to]};
}

Part Collectives::Execution::received_part(int to, int from) const {
  if (!place.call.uneven) return {from * (count() / size()), count() / size()};
  const SharedCounts& counts = slot(to).counts;
  return {sum(counts, size(), size() + from), counts[size() + from]};
}

int64_t Collectives::Execution::longest_count() const {
  if (!place.call.uneven) return call.operation == Operation::all_to_all ? count() / size() : count();
  if (!place.call.counts_differ_by_rank()) return std::ranges::max(place.call.counts);
  int64_t longest = 0;
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) longest = std::max(longest, slot(from).counts[to]);
  }
  return longest;
}

int64_t Collectives::Execution::given_bytes() const {
  switch (call.operation) {
    case Operation::reduce_scatter:
      return place.call.uneven ? bytes() : bytes() * size();
    case Operation::scatter:
      return bytes() * size();
    case Operation::all_gather:
      return place.call.uneven ? longest_count() * element_bytes() : bytes();
    case Operation::all_to_all: {
      if (!place.call.uneven) return bytes();
      int64_t most = 0;
      for (int r = 0; r < size(); ++r) most = std::max(most, sum(slot(r).counts, 0, size()));
      return most * element_bytes();
    }
    default:
      return bytes();
  }
}

bool Collectives::Execution::slot_holds_input(int r) const {
  if (!place.call.counts_differ_by_rank() || !is_native()) return is_inline();
  return sum(slot(r).counts, 0, size()) * element_bytes() <= kInlineBytes;
}

bool Collectives::Execution::all_reachable() const {
  if (call.operation == Operation::broadcast || call.operation == Operation::scatter) {
    return slot(call.peer).call.reachable();
  }
  for (int r = 0; r < size(); ++r) {
    if (!slot(r).call.reachable() && !slot_holds_input(r)) return false;
  }
  return true;
}

}  // namespace lockstep::comm::host
