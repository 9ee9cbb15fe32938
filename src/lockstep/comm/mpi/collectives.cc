#include "lockstep/comm/mpi/collectives.h"

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/comm/mpi/announcement.h"
#include "lockstep/comm/mpi/termination.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::mpi {
namespace {

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

}  // namespace

struct Collectives::Task {
  Collectives& group;
  const Call& call;
  const Execution& execution;

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
    char* const memory = group.workspace_.operands(bytes * size());
    for (int r = 0; r < size(); ++r) parts[static_cast<size_t>(r)] = {memory + r * bytes, bytes};
    return parts;
  }

  void run();
  void run_announced();
  void run_native();
  void run_program();

  // Part r of `to` goes to member r, part r of `from` is filled by it, with the announcement of the call.
  void meet(const Parts& to, const Parts& from);
  void check(int member, const Parts& from);
  [[noreturn]] void raise_mismatch(int member) const;
  // output <- the reduction of parts, which all have `bytes`.
  void reduce_parts(const Parts& parts, void* output, int64_t bytes) const;
  std::vector<int64_t> sent_counts() const;
};

Collectives::Collectives(const GroupView& group, Board& board, Programs& programs, const FlightLog& flight)
    : group_(group),
      board_(board),
      programs_(programs),
      flight_(flight),
      native_(group.session, group.identity, group.tag),
      announcement_bytes_(round_up(announcement_bytes(group.identity.size()), 64)),
      announcements_(
          std::make_shared<std::vector<char>>(static_cast<size_t>(2 * group.identity.size() * announcement_bytes_))) {}

void Collectives::execute(const Call& call, uint8_t algorithm, double deadline_s, const Pace& pace) {
  Place place{.call = info_of(call), .number = number_ + 1};
  place.call.algorithm = algorithm;
  if (algorithm == kNative) NativeCollectives::refuse_what_mpi_cannot(call);
  group_.health.check(&place);
  ++number_;
  const uint64_t ticket = flight_.begin("call", number_, place.call);
  const Termination::DuringCall during_call;
  const Board::Entry entry(board_, place, group_.identity);
  host::Deadline deadline{.limit_s = deadline_s};
  const Execution execution{place, pace, deadline};
  Task task{*this, call, execution};
  try {
    task.run();
    flight_.end(ticket);
  } catch (...) {  // MPI may still be at what was under way
    for (const Workspace::Memory& memory : workspace_.memories()) group_.session.keep_for_ever(memory);
    group_.session.keep_for_ever(announcements_);
    group_.session.keep_for_ever(native_.memory());
    group_.session.keep_for_ever(std::make_shared<Call>(call));
    const Failure failure = Failure::of(std::current_exception());
    flight_.failed(failure);
    group_.health.note(failure);
    throw;
  }
}

void Collectives::Task::run() {
  const uint8_t algorithm = execution.place.call.algorithm;
  if (algorithm == kAnnounced) return run_announced();
  meet(nothing(), nothing());
  if (call.operation == Operation::barrier) return;
  if (algorithm == kNative) return run_native();
  run_program();
}

// Everything is small enough to travel with the announcements; sums are made by whoever wants them.
void Collectives::Task::run_announced() {
  const Part input = part_of(call.input), output = part_of(call.output);
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce: {
      const bool takes = call.operation == Operation::all_reduce || is_root();
      const Parts parts = takes ? incoming_parts(input.bytes) : nothing();
      meet(call.operation == Operation::all_reduce ? the_same(input) : only(call.peer, input), parts);
      if (takes) reduce_parts(parts, output.data, input.bytes);
      return;
    }
    case Operation::reduce_scatter: {
      const Parts parts = incoming_parts(output.bytes);
      meet(parts_of(call.input, call.input_counts, size()), parts);
      return reduce_parts(parts, output.data, output.bytes);
    }
    case Operation::broadcast:
      return meet(is_root() ? the_same(output) : nothing(), only(call.peer, output));
    case Operation::all_gather:
      return meet(the_same(input), parts_of(call.output, call.output_counts, size()));
    case Operation::scatter:
      return meet(is_root() ? parts_of(call.input, {}, size()) : nothing(), only(call.peer, output));
    case Operation::gather:
      return meet(only(call.peer, input), is_root() ? parts_of(call.output, {}, size()) : nothing());
    case Operation::all_to_all:
      return meet(parts_of(call.input, {}, size()), parts_of(call.output, {}, size()));
    case Operation::barrier:
    case Operation::send:
    case Operation::receive:
      LOCKSTEP_CHECK(false, name(call.operation), " announces no data");
  }
}

void Collectives::Task::run_native() {
  Pending pending = group.native_.start(call);
  const host::WaitEnd end = poll_until(
      execution.pace, execution.deadline, [&] { return view().session.test(pending); },
      [&] { return view().health.disturbed(view().identity.others(), execution.place); });
  if (end != host::WaitEnd::ready) {
    view().health.raise(end, view().identity.others(), execution.place, execution.deadline);
  }
  group.native_.finish(call);
}

void Collectives::Task::run_program() {
  const int root = has_root(call.operation) ? call.peer : 0;
  const collective::Program& program = group.programs_.program(call.operation, execution.place.call.algorithm, root);
  const std::vector<int64_t> sizes = piece_sizes_of(program, call, sent_counts());
  group.traffic_ +=
      comm::run_program(program, sizes, call, rank(), group.workspace_, [this](std::span<const Message> round) {
        Transfer transfer(view(), Stream::data);
        for (const Message& step : round) {
          if (step.operation == Operation::receive) transfer.receive(step.peer, step.buffer.data, step.buffer.bytes());
        }
        for (const Message& step : round) {
          if (step.operation == Operation::send) transfer.send(step.peer, step.buffer.data, step.buffer.bytes());
        }
        transfer.wait(execution);
      });
}

// Of an uneven all_to_all: what each member sends to each.
std::vector<int64_t> Collectives::Task::sent_counts() const {
  std::vector<int64_t> counts;
  if (!execution.place.call.counts_differ_by_rank()) return counts;
  for (int r = 0; r < size(); ++r) {
    const CallInfo info = r == rank() ? execution.place.call : call_of(group.received_announcement(r));
    counts.insert(counts.end(), info.counts.begin(), info.counts.begin() + size());
  }
  return counts;
}

void Collectives::Task::meet(const Parts& to, const Parts& from) {
  Transfer transfer(view(), Stream::announcements);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transfer.receive(r, group.received_announcement(r), group.announcement_bytes_);
    char* const announcement = group.sent_announcement(r);
    const Part& part = to[static_cast<size_t>(r)];
    write_announcement(announcement, execution.place, view().identity, part.bytes);
    copy(data_of(announcement), part.data, part.bytes, false);
    transfer.send(r, announcement, length_of(announcement));
  }
  const auto own = static_cast<size_t>(rank());
  if (to[own].bytes > 0 && from[own].bytes > 0) copy(from[own].data, to[own].data, to[own].bytes, false);
  transfer.wait(execution, [&](int member) { check(member, from); });
  for (int r = 0; r < size(); ++r) {
    const Part& part = from[static_cast<size_t>(r)];
    if (r != rank() && part.bytes > 0) copy(part.data, data_of(group.received_announcement(r)), part.bytes, false);
  }
}

void Collectives::Task::check(int member, const Parts& from) {
  const char* const announcement = group.received_announcement(member);
  const Announcement& header = header_of(announcement);
  const CallInfo& own = execution.place.call;
  const CallInfo theirs = call_of(announcement);
  const auto sent = [&] { return theirs.counts[static_cast<size_t>(rank())]; };
  const auto expected = [&] { return own.counts[static_cast<size_t>(size() + member)]; };
  if (header.group == view().identity.key && header.number == execution.place.number && theirs.same_call(own) &&
      header.given_bytes == from[static_cast<size_t>(member)].bytes &&
      (!own.counts_differ_by_rank() || sent() == expected())) [[likely]] {
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

void Collectives::Task::reduce_parts(const Parts& parts, void* output, int64_t bytes) const {
  if (bytes == 0) return;
  std::vector<const void*> inputs;
  for (const Part& part : parts) inputs.push_back(part.data);
  comm::reduce(call.input.type, call.reduction, inputs, {&output, 1}, bytes / element_size(call.input.type), false);
}

}  // namespace lockstep::comm::mpi
