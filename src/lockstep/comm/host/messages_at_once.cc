// Short messages that pass the queues by: where nothing is queued before them, they are put into their channel, and
// taken from it, at once. To the other ranks that looks as if they had been queued; what would have to wait is queued.
#include <sched.h>

#include "lockstep/comm/host/messages.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::host {

bool Messages::run_at_once(std::span<const Call> calls, const Patience& patience, Done& done, Lock& lock) {
  const auto may_pass = [&] {
    for (size_t i = 0; i < calls.size(); ++i) {
      if (!done[i] && !may_pass_queue(calls[i])) return false;
    }
    return true;
  };
  for (int tries = 0; may_pass(); ++tries) {
    if (try_at_once(calls, patience.spin_s > 0, done)) return true;
    if (tries == patience.yields) return false;
    lock.unlock();
    sched_yield();
    lock.lock();
  }
  return false;
}

bool Messages::try_at_once(std::span<const Call> calls, bool looks, Done& done) {
  const Done before = done;
  const auto try_all = [&](Operation operation) {
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].operation != operation || done[i]) continue;
      done[i] = operation == Operation::send ? send_at_once(calls[i]) : receive_at_once(calls[i]);
      if (!done[i]) return false;  // the next may be of its queue
    }
    return true;
  };
  const bool sent = try_all(Operation::send);
  const auto receive_all = [&] { return try_all(Operation::receive); };
  const bool received = looks ? look_briefly(receive_all) : receive_all();
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool rung = i == 1 && done[0] && !before[0] && calls[0].peer == calls[1].peer;
    if (done[i] && !before[i] && !rung) view_.member(calls[i].peer).message_bell.ring();
  }
  return sent && received;
}

// One fragment, which is copied.
bool Messages::may_pass_queue(const Call& call) {
  const Buffer& data = call.operation == Operation::send ? call.input : call.output;
  return queue_of(call).messages.empty() && data.bytes() <= kFetchedBytes;
}

bool Messages::send_at_once(const Call& call) {
  Channel& channel = view_.channel(options_.what, view_.rank, call.peer);
  Queue& queue = queue_of(call);
  if (!has_room(queue, channel)) return false;
  const Place place = next_place(call);
  const uint64_t ticket = record_start(place);
  Fragment& fragment = channel.next_to_put();
  fragment.address = 0;
  copy(fragment.data, call.input.data, call.input.bytes(), false);
  channel.put(fragment, place.call);
  record_end(ticket);
  ++queue_of(call).next_number;
  return true;
}

bool Messages::receive_at_once(const Call& call) {
  Channel& channel = view_.channel(options_.what, call.peer, view_.rank);
  const Fragment* const fragment = channel.next_to_take();
  if (fragment == nullptr) return false;
  const Place place = next_place(call);
  const uint64_t ticket = record_start(place);
  check_fingerprint(place, *fragment, call.peer);
  copy(call.output.data, fragment->data, call.output.bytes(), false);
  channel.take();
  record_end(ticket);
  ++queue_of(call).next_number;
  return true;
}

}  // namespace lockstep::comm::host
