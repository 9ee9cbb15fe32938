#include "lockstep/comm/host/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "lockstep/base/units.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::host {
namespace {

// Elements [begin, end) of a buffer; ranges of different ranks share no cache line.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

Range share_of(int rank, int size, int64_t count, int64_t element_bytes) {
  const int64_t share = round_up((count + size - 1) / size, kCacheLine / element_bytes);
  return {std::min(rank * share, count), std::min((rank + 1) * share, count)};
}

// The memory whose reachability decides how the call is executed.
const Buffer& exposed_buffer(const Call& call) {
  return call.operation == Operation::all_reduce ? call.output : call.input;
}

}  // namespace

struct Collectives::Execution {
  Collectives& group;
  const Call& call;
  const Patience& patience;
  Place place{};
  Deadline deadline{};
  bool rung = true;

  const GroupView& view() const { return group.view_; }
  int rank() const { return view().rank; }
  int size() const { return view().size(); }
  int64_t count() const { return place.call.count; }
  int64_t bytes() const { return place.call.bytes(); }
  int64_t element_bytes() const { return element_size(place.call.type); }
  Slot& slot(int r) const { return view().member(r).slots[place.number % 2]; }
  char* input() const { return static_cast<char*>(call.input.data); }
  char* output() const { return static_cast<char*>(call.output.data); }
  char* input_of(int r) const { return view().segment->decode(slot(r).address.input); }
  char* output_of(int r) const { return view().segment->decode(slot(r).address.output); }

  // What this rank gives to the others.
  int64_t given_bytes() const { return call.operation == Operation::reduce_scatter ? bytes() * size() : bytes(); }
  bool is_inline() const { return given_bytes() <= kInlineBytes; }
  bool streaming() const { return given_bytes() >= kStreamingBytes; }

  void announce();
  void ring();
  void meet();
  void sync();
  template <class Arrived>
  void await(int r, Arrived arrived);
  [[noreturn]] void raise_mismatch();

  void move_data();
  bool all_reachable() const;
  void move_inline();
  void move_directly();
  void move_staged();
  void stage_all_reduce();
  void stage_reduce_scatter();
  void stage_all_gather();
  void stage_broadcast();

  // The reduction of `n` elements at address(r) of every rank r, to `to`, or to that address of every rank.
  template <class Address>
  void reduce_to(void* to, Address address, int64_t n);
  template <class Address>
  void reduce_to_all(Address address, int64_t n, bool streaming);
};

void Collectives::execute(const Call& call, double deadline_s, const Patience& patience) {
  const bool is_new = call.operation > Operation::broadcast && call.operation < Operation::send;
  if (is_new || call.uneven()) throw Unsupported(text(describe(call), ": this backend has no such operation yet"));
  Execution execution{*this, call, patience};
  const Buffer& exposed = exposed_buffer(call);
  execution.place.call = info_of(call, view_.segment->reachable(exposed.data, exposed.bytes()));
  execution.place.number = sequence_ + 1;
  execution.deadline.limit_s = deadline_s;
  health_.check(&execution.place);
  ++sequence_;
  execution.announce();
  execution.meet();
  execution.move_data();
  view_.mine().completed.store(sequence_, std::memory_order_release);
}

void Collectives::Execution::announce() {
  Slot& own = slot(rank());
  own.call.store(place.call);
  if (place.call.detail_hash != 0) own.tag.store(place.call.tag);
  if (is_inline()) {
    const bool gives =
        call.operation != Operation::barrier && (call.operation != Operation::broadcast || call.peer == rank());
    if (gives && given_bytes() > 0) std::memcpy(own.data, input(), static_cast<size_t>(given_bytes()));
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
  claim_cache_line(&view().mine().slots[(place.number + 1) % 2]);  // nobody looks at it yet
  ring();
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
      view().member(r).collective_bell, patience, deadline, [&] { return arrived(r); },
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
  std::map<std::string, std::vector<int>> ranks_by_call;
  for (int r = 0; r < size(); ++r) {
    if (slot(r).sequence.load() != place.number) continue;
    CallInfo theirs = slot(r).call.load();
    if (theirs.detail_hash != 0) theirs.tag = slot(r).tag.load();
    ranks_by_call[describe(theirs, view().world_ranks())].push_back(view().world_ranks()[static_cast<size_t>(r)]);
  }
  std::vector<std::string> lines;
  for (const auto& [text_of_call, ranks] : ranks_by_call) {
    lines.push_back(text(ranks.size() > 1 ? "ranks " : "rank ", join(ranks), " made ", text_of_call));
  }
  group.health_.fail(
      Failure::Kind::protocol_mismatch,
      text("rank ", view().world_rank(), ": ranks disagree on call ", place.number, " of group '", view().group->name,
           "': ", join(lines, "; "), ". Every rank of a group must make the same calls in the same order"));
}

void Collectives::Execution::move_data() {
  if (count() == 0 || call.operation == Operation::barrier) return;
  if (is_inline()) {
    move_inline();
  } else if (all_reachable()) {
    move_directly();
    sync();
  } else {
    move_staged();
  }
}

bool Collectives::Execution::all_reachable() const {
  if (call.operation == Operation::broadcast) return slot(call.peer).call.reachable();
  for (int r = 0; r < size(); ++r) {
    if (!slot(r).call.reachable()) return false;
  }
  return true;
}

template <class Address>
void Collectives::Execution::reduce_to(void* to, Address address, int64_t n) {
  std::array<const void*, kMaxRanks> inputs;
  for (int r = 0; r < size(); ++r) inputs[static_cast<size_t>(r)] = address(r);
  reduce(place.call.type, call.reduction, {inputs.data(), static_cast<size_t>(size())}, {&to, 1}, n, false);
}

template <class Address>
void Collectives::Execution::reduce_to_all(Address address, int64_t n, bool streaming) {
  std::array<const void*, kMaxRanks> inputs;
  std::array<void*, kMaxRanks> outputs;
  for (int r = 0; r < size(); ++r) inputs[static_cast<size_t>(r)] = outputs[static_cast<size_t>(r)] = address(r);
  const auto ranks = static_cast<size_t>(size());
  reduce(place.call.type, call.reduction, {inputs.data(), ranks}, {outputs.data(), ranks}, n, streaming);
}

void Collectives::Execution::move_inline() {
  switch (call.operation) {
    case Operation::all_reduce:
      return reduce_to(output(), [&](int r) { return slot(r).data; }, count());
    case Operation::reduce_scatter:
      return reduce_to(output(), [&](int r) { return slot(r).data + rank() * bytes(); }, count());
    case Operation::all_gather:
      for (int r = 0; r < size(); ++r) copy(output() + r * bytes(), slot(r).data, bytes(), false);
      return;
    case Operation::broadcast:
      if (rank() != call.peer) copy(output(), slot(call.peer).data, bytes(), false);
      return;
    default:
      return;
  }
}

void Collectives::Execution::move_directly() {
  switch (call.operation) {
    case Operation::all_reduce: {
      const Range share = share_of(rank(), size(), count(), element_bytes());
      const int64_t offset = share.begin * element_bytes();
      return reduce_to_all([&](int r) { return output_of(r) + offset; }, share.count(), streaming());
    }
    case Operation::reduce_scatter:
      return reduce_to(output(), [&](int r) { return input_of(r) + rank() * bytes(); }, count());
    case Operation::all_gather:
      for (int r = 0; r < size(); ++r) copy(output() + r * bytes(), input_of(r), bytes(), streaming());
      return;
    case Operation::broadcast:
      if (rank() != call.peer) copy(output(), input_of(call.peer), bytes(), streaming());
      return;
    default:
      return;
  }
}

void Collectives::Execution::move_staged() {
  switch (call.operation) {
    case Operation::all_reduce:
      return stage_all_reduce();
    case Operation::reduce_scatter:
      return stage_reduce_scatter();
    case Operation::all_gather:
      return stage_all_gather();
    case Operation::broadcast:
      return stage_broadcast();
    default:
      return;
  }
}

void Collectives::Execution::stage_all_reduce() {
  const int64_t block = kStagingBlockBytes / element_bytes();
  char* const own = view().staging(rank(), 0);
  for (int64_t begin = 0; begin < count(); begin += block) {
    const int64_t n = std::min(block, count() - begin);
    copy(own, output() + begin * element_bytes(), n * element_bytes(), false);
    sync();
    const Range share = share_of(rank(), size(), n, element_bytes());
    const int64_t offset = share.begin * element_bytes();
    reduce_to_all([&](int r) { return view().staging(r, 0) + offset; }, share.count(), false);
    sync();
    copy(output() + begin * element_bytes(), own, n * element_bytes(), false);
  }
}

// In the three below a rank fills one half of its staging while others may still read the other half: it fills the
// first again only after a sync that they reached by having read it.

void Collectives::Execution::stage_reduce_scatter() {
  const int64_t block = kStagingBlockBytes / size() / kCacheLine * kCacheLine / element_bytes();
  int half = 0;
  for (int64_t begin = 0; begin < count(); begin += block, half ^= 1) {
    const int64_t n = std::min(block, count() - begin);
    for (int r = 0; r < size(); ++r) {
      copy(view().staging(rank(), half) + r * block * element_bytes(),
           input() + (r * count() + begin) * element_bytes(), n * element_bytes(), false);
    }
    sync();
    reduce_to(
        output() + begin * element_bytes(),
        [&](int r) { return view().staging(r, half) + rank() * block * element_bytes(); }, n);
  }
}

void Collectives::Execution::stage_all_gather() {
  int half = 0;
  for (int64_t begin = 0; begin < bytes(); begin += kStagingBlockBytes, half ^= 1) {
    const int64_t n = std::min(kStagingBlockBytes, bytes() - begin);
    copy(view().staging(rank(), half), input() + begin, n, false);
    sync();
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) copy(output() + r * bytes() + begin, view().staging(r, half), n, false);
    }
  }
  copy(output() + rank() * bytes(), input(), bytes(), false);
}

void Collectives::Execution::stage_broadcast() {
  int half = 0;
  for (int64_t begin = 0; begin < bytes(); begin += kStagingBlockBytes, half ^= 1) {
    const int64_t n = std::min(kStagingBlockBytes, bytes() - begin);
    if (rank() == call.peer) copy(view().staging(rank(), half), input() + begin, n, false);
    sync();
    if (rank() != call.peer) copy(output() + begin, view().staging(call.peer, half), n, false);
  }
}

}  // namespace lockstep::comm::host
