#include "lockstep/comm/mpi/messages.h"

#include "lockstep/comm/mpi/announcement.h"
#include "lockstep/comm/mpi/termination.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::mpi {

void Messages::execute(const Call& call, uint64_t number, double deadline_s, const Pace& pace) {
  Place place{.call = info_of(call), .kind = "message", .number = number};
  group_.health.check(&place);
  const uint64_t ticket = flight_.begin("message", number, place.call);
  const Termination::DuringCall during_call;
  const Board::Entry entry(board_, place, group_.identity);
  host::Deadline deadline{.limit_s = deadline_s};
  const Execution execution{place, pace, deadline};
  const auto announcement = std::make_shared<std::vector<char>>(static_cast<size_t>(announcement_bytes(1)));
  try {
    if (call.operation == Operation::send) {
      send(call, execution, announcement->data());
    } else {
      receive(call, execution, announcement->data());
    }
    flight_.end(ticket);
  } catch (...) {  // MPI may still be at what was under way
    group_.session.keep_for_ever(announcement);
    group_.session.keep_for_ever(std::make_shared<Call>(call));
    const Failure failure = Failure::of(std::current_exception());
    flight_.failed(failure);
    group_.health.note(failure);
    throw;
  }
}

void Messages::send(const Call& call, const Execution& execution, char* announcement) {
  const int64_t bytes = call.input.bytes();
  write_announcement(announcement, execution.place, group_.identity, bytes);
  if (bytes <= kInlineBytes) copy(data_of(announcement), call.input.data, bytes, false);
  Transfer headers(group_, Stream::message_headers), data(group_, Stream::message_data);
  headers.send(call.peer, announcement, length_of(announcement));
  if (bytes > kInlineBytes) data.send(call.peer, call.input.data, bytes);
  headers.wait(execution);
  data.wait(execution);
}

void Messages::receive(const Call& call, const Execution& execution, char* announcement) {
  const int64_t bytes = call.output.bytes();
  Transfer headers(group_, Stream::message_headers), data(group_, Stream::message_data);
  headers.receive(call.peer, announcement, announcement_bytes(1));
  headers.wait(execution);
  check(execution, call.peer, announcement);
  execution.place.announced = true;
  if (bytes <= kInlineBytes) return copy(call.output.data, data_of(announcement), bytes, false);
  data.receive(call.peer, call.output.data, bytes);
  data.wait(execution);
}

void Messages::check(const Execution& execution, int peer, const char* announcement) const {
  const CallInfo& own = execution.place.call;
  const CallInfo theirs = call_of(announcement);
  if (own.type == theirs.type && own.count == theirs.count && own.detail_hash == theirs.detail_hash) return;
  const GroupIdentity& group = group_.identity;
  const std::vector<NamedCall> calls{{group.world_rank_of(peer), describe(theirs, group.world_ranks)},
                                     {group.world_rank(), describe(own, group.world_ranks)}};
  group_.health.fail(Failure::Kind::protocol_mismatch,
                     text("rank ", group.world_rank(), ": ranks disagree on message ", execution.place.number,
                          " of group '", group.name, "': ", who_made_what(calls),
                          ". Both sides of a message must give the same type, count and tag, in the same order"));
}

}  // namespace lockstep::comm::mpi
