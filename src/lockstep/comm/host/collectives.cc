#include "lockstep/comm/host/collectives.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/host/execution.h"

namespace lockstep::comm::host {

void Collectives::execute(const Call& call, uint8_t algorithm, double deadline_s, const Patience& patience) {
  Execution execution{.group = *this,
                      .call = call,
                      .patience = patience,
                      .place = {.call = info_of(call), .number = sequence_ + 1},
                      .deadline = {.limit_s = deadline_s}};
  execution.place.call.algorithm = algorithm;
  health_.check(&execution.place);
  ++sequence_;
  const uint64_t ticket = flight_.begin("call", sequence_, execution.place.call);
  if (execution.repeats_broadcast()) {
    execution.run_ahead();
  } else {
    execution.announce();
    execution.meet();
    execution.move_data();
  }
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
  group.turn_ = 1 - group.turn_;
  place.call.reachable = exposes_reachable_memory();
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

// Everyone's announcement is there and says the same. Whoever announces this call has also repeated what this rank has
// repeated since they last met: one that made another call instead got no further.
void Collectives::Execution::meet() {
  const auto announced = [this](int r) {
    return slot(r).sequence.load(std::memory_order_acquire) > group.repeats_.met;
  };
  const auto repeats = [this](int r) {
    return view().member(r).repeated.load(std::memory_order_acquire) >= place.number;
  };
  for (int r = 0; r < size(); ++r) {
    if (patience.spin_s == 0 || !look_briefly([&] { return announced(r); })) {
      await(r, [&](int other) { return announced(other) || repeats(other); });
    }
    compare(r);
  }
  if (place.call.counts_differ_by_rank() && !pairs_agree()) [[unlikely]]
    raise_mismatch(place.number);
  group.repeats_ = {.met = place.number};
  claim_cache_line(&other_slot(rank()));  // nobody looks at it yet
  ring();
}

// With what rank r has announced after the last call that all have met for.
void Collectives::Execution::compare(int r) {
  const uint64_t number = slot(r).sequence.load(std::memory_order_acquire);
  if (number == place.number && slot(r).call.same_call(slot(rank()).call)) [[likely]]
    return;
  raise_mismatch(number > group.repeats_.met ? std::min(number, place.number) : place.number);
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

// What rank r announced as its call of that number, after the last but one that all have met for; null if it has not.
const Slot* Collectives::Execution::announced_by(int r, uint64_t number) const {
  const Member& member = view().member(r);
  const uint64_t repeated = member.repeated.load(std::memory_order_acquire);
  const Slot* latest = nullptr;
  uint64_t of_latest = 0;
  for (const Slot& each : member.slots) {
    const uint64_t sequence = each.sequence.load();  // once: the rank may be announcing a later call there
    if (sequence > number || (latest != nullptr && sequence < of_latest)) continue;
    latest = &each;
    of_latest = sequence;
  }
  const bool has = latest != nullptr && (of_latest == number || repeated >= number);
  return has ? latest : nullptr;
}

void Collectives::Execution::raise_mismatch(uint64_t number) {
  RanksByCall ranks_by_call;
  for (int r = 0; r < size(); ++r) {
    const Slot* const announced = announced_by(r, number);
    if (announced == nullptr) continue;
    const CallInfo theirs = announced->info(size());
    ranks_by_call[describe(theirs, view().world_ranks())].push_back(view().world_ranks()[static_cast<size_t>(r)]);
  }
  group.health_.fail(
      Failure::Kind::protocol_mismatch,
      text("rank ", view().world_rank(), ": ranks disagree on call ", number, " of group '", view().group->name,
           "': ", who_made_what(ranks_by_call), ". Every rank of a group must make the same calls in the same order",
           place.call.counts_differ_by_rank() ? ", and receive from each what that one sends" : ""));
}

}  // namespace lockstep::comm::host
