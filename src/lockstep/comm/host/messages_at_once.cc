// Short messages that pass the queues by: where nothing is queued before them, they are put into their channel, and
// taken from it, at once. To the other ranks that looks as if they had been queued; what would have to wait is queued.
#include <algorithm>

#include "lockstep/comm/host/messages.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::host {

void Messages::run_at_once(std::span<const Call> calls, const Place* collective, const Patience& patience, Done& done) {
  const std::lock_guard lock(mutex_);
  if (!std::ranges::all_of(calls, [this](const Call& call) { return may_pass_queue(call); })) return;
  try {
    std::array<Place, kFew> places;
    for (size_t i = 0; i < calls.size(); ++i) {
      places[i] = {.call = info_of(calls[i]), .kind = "message"};
      health_.check(collective != nullptr ? collective : &places[i]);
    }
    const auto try_all = [&](Operation operation) {
      bool all = true;
      for (size_t i = 0; i < calls.size() && all; ++i) {  // not beyond one that waits: the next may be of its queue
        if (calls[i].operation != operation || done[i]) continue;
        done[i] =
            operation == Operation::send ? send_at_once(calls[i], places[i]) : receive_at_once(calls[i], places[i]);
        all = done[i];
      }
      return all;
    };
    try_all(Operation::send);
    const auto receive_all = [&] { return try_all(Operation::receive); };
    if (!receive_all() && patience.spin_s > 0) look_briefly(receive_all);
  } catch (...) {
    fail_all(Failure::of(std::current_exception()));
    throw;
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool rung = i == 1 && done[0] && calls[0].peer == calls[1].peer;
    if (done[i] && !rung) view_.member(calls[i].peer).message_bell.ring();
  }
}

// One fragment, which is copied.
bool Messages::may_pass_queue(const Call& call) {
  const Buffer& data = call.operation == Operation::send ? call.input : call.output;
  return queue_of(call).messages.empty() && data.bytes() <= kFetchedBytes;
}

bool Messages::send_at_once(const Call& call, Place& place) {
  Channel& channel = view_.channel(options_.what, view_.rank, call.peer);
  Queue& queue = queue_of(call);
  if (!has_room(queue, channel)) return false;
  place.number = queue.next_number++;
  const uint64_t ticket = record_start(place);
  Fragment& fragment = channel.next_to_put();
  fragment.address = 0;
  copy(fragment.data, call.input.data, call.input.bytes(), false);
  channel.put(fragment, place.call);
  record_end(ticket);
  return true;
}

bool Messages::receive_at_once(const Call& call, Place& place) {
  Channel& channel = view_.channel(options_.what, call.peer, view_.rank);
  const Fragment* const fragment = channel.next_to_take();
  if (fragment == nullptr) return false;
  place.number = queue_of(call).next_number++;
  const uint64_t ticket = record_start(place);
  check_fingerprint(place, *fragment, call.peer);
  copy(call.output.data, fragment->data, call.output.bytes(), false);
  channel.take();
  record_end(ticket);
  return true;
}

}  // namespace lockstep::comm::host
