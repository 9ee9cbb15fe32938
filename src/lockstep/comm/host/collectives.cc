#include "lockstep/comm/host/collectives.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/host/execution.h"

namespace lockstep::comm::host {

void Collectives::execute(const Call& call, uint8_t algorithm, double deadline_s, const Patience& patience) {
  Execution execution{*this, call, patience};
  execution.place.call = info_of(call, execution.exposes_reachable_memory());
  execution.place.call.algorithm = algorithm;
  execution.place.number = sequence_ + 1;
  execution.deadline.limit_s = deadline_s;
  health_.check(&execution.place);
  ++sequence_;
  const uint64_t ticket = flight_.begin("call", sequence_, execution.place.call);
  execution.announce();
  execution.meet();
  execution.move_data();
  view_.mine().completed.store(sequence_, std::memory_order_release);
  flight_.end(ticket);
}

bool Collectives::Execution::exposes_reachable_memory() const {
  const Segment& segment = *view().segment;
  const bool in_place = call.operation == Operation::all_to_all && call.input.data == call.output.data;
  if (in_place || (gives() && !segment.reachable(call.input.data, call.input.bytes()))) return false;
  return call.operation != Operation::reduce || !is_root() || segment.reachable(call.output.data, call.output.bytes());
}

void Collectives::Execution::announce() {
  Slot& own = slot(rank());
  own.call.store(place.call);
  if (place.call.detail_hash != 0) own.tag.store(place.call.tag);
  if (place.call.uneven) own.counts.store(place.call.counts);
  if (place.call.counts_differ_by_rank() ? slot_holds_input(rank()) : is_inline()) {
    if (gives() && call.input.count > 0) {
      std::memcpy(own.data, call.input.data, static_cast<size_t>(call.input.bytes()));
    }
  } else {
    own.address.input = view().segment->encode(input());
    own.address.output = view().segment->encode(output());
  }
  own.sequence.store(place.number, std::memory_order_release);
  rung = false;
}

// Wakes who sleeps until this rank's last step, once per step. Not right after it but after a brief look for the
// others: they are mostly there, and it costs as much as that look.
void Collectives::Execution::ring() {
  if (!rung) view().mine().collective_bell.ring();
  rung = true;
}

// Everyone's announcement is there and says the same.
void Collectives::Execution::meet() {
  const SharedCall& own = slot(rank()).call;
  for (int r = 0; r < size(); ++r) {
    await(r, [this](int other) { return slot(other).sequence.load(std::memory_order_acquire) == place.number; });
    if (!slot(r).call.same_call(own)) [[unlikely]]
      raise_mismatch();
  }
  if (place.call.counts_differ_by_rank() && !pairs_agree()) [[unlikely]]
    raise_mismatch();
  claim_cache_line(&view().mine().slots[(place.number + 1) % 2]);  // nobody looks at it yet
  ring();
}

// Whether each rank sends to each what that one expects. Every rank looks at all pairs, so all decide alike.
bool Collectives::Execution::pairs_agree() const {
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      if (slot(from).counts[to] != slot(to).counts[size() + from]) return false;
    }
  }
  return true;
}

void Collectives::Execution::sync() {
  const uint64_t phase = ++group.phase_;
  view().mine().phase.store(phase, std::memory_order_release);
  rung = false;
  for (int r = 0; r < size(); ++r) {
    await(r, [this, phase](int other) { return view().member(other).phase.load(std::memory_order_acquire) >= phase; });
  }
  ring();
}

template <class Arrived>
void Collectives::Execution::await(int r, Arrived arrived) {
  if (patience.spin_s > 0 ? look_briefly([&] { return arrived(r); }) : arrived(r)) return;
  ring();
  const WaitEnd end = wait_until(
      view().member(r).collective_bell, patience_here(view(), patience), deadline, [&] { return arrived(r); },
      [&] { return group.health_.disturbed(r); });
  if (end == WaitEnd::ready) [[likely]]
    return;
  std::vector<int> awaited;
  for (int other = 0; other < size(); ++other) {
    if (!arrived(other)) awaited.push_back(other);
  }
  group.health_.raise(end, awaited, place, deadline);
}

void Collectives::Execution::raise_mismatch() {
  RanksByCall ranks_by_call;
  for (int r = 0; r < size(); ++r) {
    if (slot(r).sequence.load() != place.number) continue;
    const CallInfo theirs = slot(r).info(size());
    ranks_by_call[describe(theirs, view().world_ranks())].push_back(view().world_ranks()[static_cast<size_t>(r)]);
  }
  group.health_.fail(
      Failure::Kind::protocol_mismatch,
      text("rank ", view().world_rank(), ": ranks disagree on call ", place.number, " of group '", view().group->name,
           "': ", who_made_what(ranks_by_call), ". Every rank of a group must make the same calls in the same order",
           place.call.counts_differ_by_rank() ? ", and receive from each what that one sends" : ""));
}

}  // namespace lockstep::comm::host
