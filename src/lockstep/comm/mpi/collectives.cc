#include "lockstep/comm/mpi/collectives.h"

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/comm/mpi/announcement.h"
#include "lockstep/comm/mpi/termination.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::mpi {
namespace {

// Of one slice at a time in a reduction, for all members together.
constexpr int64_t kBlockBytes = 4 << 20;

struct Part {
  char* data = nullptr;
  int64_t bytes = 0;
};
using Parts = std::vector<Part>;  // one for each member; its own is copied

Part part_of(const Buffer& buffer) {
  return {static_cast<char*>(buffer.data), buffer.bytes()};
}

// Every member's part of a buffer, in rank order: as counted, or equal ones.
Parts parts_of(const Buffer& whole, Counts counts, int size) {
  Parts parts;
  char* at = static_cast<char*>(whole.data);
  for (int r = 0; r < size; ++r) {
    const int64_t count = counts.empty() ? whole.count / size : counts[static_cast<size_t>(r)];
    parts.push_back({at, count * element_size(whole.type)});
    at += parts.back().bytes;
  }
  return parts;
}

// As evenly as elements allow, on cache lines.
Parts shares_of(const Buffer& whole, int size) {
  constexpr int64_t kCacheLine = 64;
  const int64_t share = round_up((whole.bytes() + size - 1) / size, kCacheLine);
  Parts parts;
  for (int r = 0; r < size; ++r) {
    const int64_t begin = std::min(r * share, whole.bytes());
    parts.push_back({static_cast<char*>(whole.data) + begin, std::min(share, whole.bytes() - begin)});
  }
  return parts;
}

int64_t longest(const Parts& parts) {
  return std::ranges::max(parts, {}, &Part::bytes).bytes;
}

}  // namespace

struct Collectives::Task {
  Collectives& group;
  const Call& call;
  const Execution& execution;
  bool met = false;

  const GroupView& view() const { return group.group_; }
  int rank() const { return view().identity.rank; }
  int size() const { return view().identity.size(); }
  bool is_root() const { return call.peer == rank(); }
  Parts nothing() const { return Parts(static_cast<size_t>(size())); }
  Parts the_same(const Part& part) const { return Parts(static_cast<size_t>(size()), part); }
  Parts only(int member, const Part& part) const {
    Parts parts = nothing();
    parts[static_cast<size_t>(member)] = part;
    return parts;
  }
  Parts incoming_parts(int64_t bytes) const {
    Parts parts = nothing();
    char* const memory = grown(group.incoming_, bytes * size());
    for (int r = 0; r < size(); ++r) parts[static_cast<size_t>(r)] = {memory + r * bytes, bytes};
    return parts;
  }

  void run();
  void all_reduce();
  void reduce();
  void broadcast();
  void all_to_all();

  // Part r of `to` goes to member r, part r of `from` is filled by it. The first one announces the call.
  void exchange(const Parts& to, const Parts& from);
  void announce(const Parts& to, const Parts& from);
  void check(int member, const Parts& from);
  [[noreturn]] void raise_mismatch(int member) const;
  // output <- the reduction of every member's slice `rank`.
  void reduce_slices(const Parts& slices, char* output);
  // output <- the reduction of parts, which all have `bytes`.
  void reduce_parts(const Parts& parts, char* output, int64_t bytes) const;
};

Collectives::Collectives(const GroupView& group, Board& board)
    : group_(group),
      board_(board),
      announcement_bytes_(round_up(announcement_bytes(group.identity.size()), 64)),
      announcements_(
          std::make_shared<std::vector<char>>(static_cast<size_t>(2 * group.identity.size() * announcement_bytes_))) {}

char* Collectives::grown(Memory& memory, int64_t bytes) {
  if (memory == nullptr || static_cast<int64_t>(memory->size()) < bytes) {
    memory = std::make_shared<std::vector<char>>(static_cast<size_t>(bytes));
  }
  return memory->data();
}

void Collectives::execute(const Call& call, double deadline_s, const Pace& pace) {
  const Place place{.call = info_of(call), .number = number_ + 1};
  group_.health.check(&place);
  ++number_;
  const Termination::DuringCall during_call;
  const Board::Entry entry(board_, place, group_.identity);
  host::Deadline deadline{.limit_s = deadline_s};
  const Execution execution{place, pace, deadline};
  Task task{*this, call, execution};
  try {
    task.run();
  } catch (...) {  // MPI may still be at what was under way
    for (Memory* const memory : {&announcements_, &incoming_, &outgoing_}) group_.session.keep_for_ever(*memory);
    group_.session.keep_for_ever(std::make_shared<Call>(call));
    group_.health.note(Failure::of(std::current_exception()));
    throw;
  }
}

void Collectives::Task::run() {
  const Part input = part_of(call.input), output = part_of(call.output);
  switch (call.operation) {
    case Operation::all_reduce:
      return all_reduce();
    case Operation::reduce:
      return reduce();
    case Operation::broadcast:
      return broadcast();
    case Operation::all_to_all:
      return all_to_all();
    case Operation::reduce_scatter:
      return reduce_slices(parts_of(call.input, call.input_counts, size()), output.data);
    case Operation::all_gather:
      return exchange(the_same(input), parts_of(call.output, call.output_counts, size()));
    case Operation::scatter:
      return exchange(is_root() ? parts_of(call.input, {}, size()) : nothing(), only(call.peer, output));
    case Operation::gather:
      return exchange(only(call.peer, input), is_root() ? parts_of(call.output, {}, size()) : nothing());
    case Operation::barrier:
      return exchange(nothing(), nothing());
    case Operation::send:
    case Operation::receive:
      LOCKSTEP_CHECK(false, "a message is no collective");
  }
}

void Collectives::Task::all_reduce() {
  const Part whole = part_of(call.output);
  if (whole.bytes <= kInlineBytes) {
    const Parts parts = incoming_parts(whole.bytes);
    exchange(the_same(whole), parts);
    return reduce_parts(parts, whole.data, whole.bytes);
  }
  const Parts shares = shares_of(call.output, size());
  const Part& own = shares[static_cast<size_t>(rank())];
  reduce_slices(shares, own.data);
  exchange(the_same(own), shares);
}

void Collectives::Task::reduce() {
  const Part whole = part_of(call.input);
  char* const output = static_cast<char*>(call.output.data);
  if (whole.bytes <= kInlineBytes) {
    const Parts parts = is_root() ? incoming_parts(whole.bytes) : nothing();
    exchange(only(call.peer, whole), parts);
    if (is_root()) reduce_parts(parts, output, whole.bytes);
    return;
  }
  const Parts slices = shares_of(call.input, size());
  const Part& own = slices[static_cast<size_t>(rank())];
  if (is_root()) {
    const Parts shares = shares_of(call.output, size());
    char* const to = shares[static_cast<size_t>(rank())].data;
    reduce_slices(slices, to);
    return exchange(only(rank(), {to, own.bytes}), shares);
  }
  char* const sum = grown(group.outgoing_, own.bytes);
  reduce_slices(slices, sum);
  exchange(only(call.peer, {sum, own.bytes}), nothing());
}

void Collectives::Task::broadcast() {
  const Part whole = part_of(call.output);
  if (whole.bytes <= kInlineBytes || size() == 2) {
    return exchange(is_root() ? the_same(whole) : nothing(), only(call.peer, whole));
  }
  exchange(nothing(), nothing());
  const Parts shares = shares_of(call.output, size());
  const Part& own = shares[static_cast<size_t>(rank())];
  exchange(is_root() ? shares : nothing(), only(call.peer, own));
  if (is_root()) {  // it has the rest
    exchange(the_same(own), only(rank(), own));
  } else {
    Parts to = the_same(own);
    to[static_cast<size_t>(call.peer)] = {};
    exchange(to, shares);
  }
}

void Collectives::Task::all_to_all() {
  Buffer input = call.input;
  if (input.data == call.output.data && input.count > 0) {  // what arrives must not replace what is still to be sent
    input.data = grown(group.outgoing_, input.bytes());
    copy(input.data, call.input.data, input.bytes(), false);
  }
  exchange(parts_of(input, call.input_counts, size()), parts_of(call.output, call.output_counts, size()));
}

void Collectives::Task::exchange(const Parts& to, const Parts& from) {
  const auto own = static_cast<size_t>(rank());
  const bool announces = !met;
  if (announces) announce(to, from);
  const auto is_left = [&](const Part& part) { return !announces || part.bytes > kInlineBytes; };
  Transfer transfer(view(), Stream::data);
  for (int r = 0; r < size(); ++r) {
    const Part& part = from[static_cast<size_t>(r)];
    if (r != rank() && is_left(part)) transfer.receive(r, part.data, part.bytes);
  }
  for (int i = 1; i < size(); ++i) {  // not everyone to the same member first
    const int r = (rank() + i) % size();
    const Part& part = to[static_cast<size_t>(r)];
    if (is_left(part)) transfer.send(r, part.data, part.bytes);
  }
  if (to[own].bytes > 0 && from[own].bytes > 0) copy(from[own].data, to[own].data, to[own].bytes, false);
  transfer.wait(execution);
}

void Collectives::Task::announce(const Parts& to, const Parts& from) {
  met = true;
  Transfer transfer(view(), Stream::announcements);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transfer.receive(r, group.received_announcement(r), group.announcement_bytes_);
    char* const announcement = group.sent_announcement(r);
    const Part& part = to[static_cast<size_t>(r)];
    write_announcement(announcement, execution.place, view().identity, part.bytes);
    if (part.bytes > 0 && part.bytes <= kInlineBytes) copy(data_of(announcement), part.data, part.bytes, false);
    transfer.send(r, announcement, length_of(announcement));
  }
  transfer.wait(execution, [&](int member) { check(member, from); });
  for (int r = 0; r < size(); ++r) {
    const Part& part = from[static_cast<size_t>(r)];
    if (r == rank() || part.bytes == 0 || part.bytes > kInlineBytes) continue;
    copy(part.data, data_of(group.received_announcement(r)), part.bytes, false);
  }
}

void Collectives::Task::check(int member, const Parts& from) {
  const char* const announcement = group.received_announcement(member);
  const Announcement& header = header_of(announcement);
  if (header.group == view().identity.key && header.number == execution.place.number &&
      call_of(announcement).same_call(execution.place.call) &&
      header.given_bytes == from[static_cast<size_t>(member)].bytes) [[likely]] {
    return;
  }
  raise_mismatch(member);
}

void Collectives::Task::raise_mismatch(int member) const {
  const GroupIdentity& identity = view().identity;
  const std::string own = describe(execution.place.call, identity.world_ranks);
  const std::string theirs = describe(call_of(group.received_announcement(member)), identity.world_ranks);
  std::vector<NamedCall> calls{{identity.world_rank(), own}, {identity.world_rank_of(member), theirs}};
  std::ranges::sort(calls, {}, &NamedCall::world_rank);
  view().health.fail(
      Failure::Kind::protocol_mismatch,
      text("rank ", identity.world_rank(), ": ranks disagree on call ", execution.place.number, " of group '",
           identity.name, "': ", who_made_what(calls), ", ", execution.place.call.bytes(), " bytes, after ",
           execution.deadline.elapsed_s(), " s. Every rank of a group must make the same calls in the same order"));
}

void Collectives::Task::reduce_slices(const Parts& slices, char* output) {
  const auto own = static_cast<size_t>(rank());
  const int64_t most = longest(slices);
  const int64_t block = most <= kInlineBytes ? most : round_up(kBlockBytes / size(), 64);
  if (most > kInlineBytes) exchange(nothing(), nothing());
  const auto block_of = [&](const Part& slice, int64_t begin) {
    return Part{slice.data + begin, std::clamp(slice.bytes - begin, int64_t{0}, block)};
  };
  int64_t begin = 0;
  do {
    Parts to = slices;
    for (Part& part : to) part = block_of(part, begin);
    Parts from = incoming_parts(block);
    for (Part& part : from) part.bytes = to[own].bytes;
    from[own] = {};
    exchange(to, from);
    from[own] = to[own];
    reduce_parts(from, output + begin, to[own].bytes);
    begin += block;
  } while (begin < most);
}

void Collectives::Task::reduce_parts(const Parts& parts, char* output, int64_t bytes) const {
  if (bytes == 0) return;
  std::vector<const void*> inputs;
  for (const Part& part : parts) inputs.push_back(part.data);
  void* const to = output;
  comm::reduce(call.input.type, call.reduction, inputs, {&to, 1}, bytes / element_size(call.input.type), false);
}

}  // namespace lockstep::comm::mpi
