#include "lockstep/comm/host/messages.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/log.h"
#include "lockstep/comm/record_call.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::host {
namespace {

// How many bytes of a message this fragment brings, when so many are left.
int64_t fragment_bytes(const Fragment& fragment, int64_t left) {
  return fragment.address != 0 ? left : std::min(kFragmentBytes, left);
}

}  // namespace

Messages::Messages(const GroupView& view, Health& health, const Options& options)
    : view_(view),
      health_(health),
      options_(options),
      sends_(static_cast<size_t>(view.size())),
      receives_(static_cast<size_t>(view.size())) {}

Messages::~Messages() {
  {
    const std::lock_guard lock(mutex_);
    destroyed_ = true;
  }
  view_.mine().message_bell.ring();
  if (thread_.joinable()) thread_.join();
  fail_all(
      {Failure::Kind::invalid_argument, text("rank ", view_.world_rank(), ": group '", view_.group->name,
                                             "' was destroyed before this message was through; wait for it first")});
}

void Messages::run(std::span<const Call> calls, double deadline_s, trace::Recorder* recorder) {
  run_all(calls, deadline_s, recorder, nullptr, options_.of_caller);
}

void Messages::run_round(std::span<const comm::Message> round, const Place& place, double deadline_s,
                         const Patience& patience) {
  std::vector<Call> calls;
  for (const comm::Message& step : round) {
    calls.push_back({.operation = step.operation, .input = step.buffer, .output = step.buffer, .peer = step.peer});
  }
  run_all(calls, deadline_s, nullptr, &place, patience);
}

void Messages::run_all(std::span<const Call> calls, double deadline_s, trace::Recorder* recorder,
                       const Place* collective, const Patience& patience) {
  Lock lock(mutex_);
  Done done{};
  try {
    for (const Call& call : calls) check_health(call, collective);
    if (calls.size() <= kFew && recorder == nullptr && run_at_once(calls, patience, done, lock)) return;
  } catch (...) {
    fail_all(Failure::of(std::current_exception()));
    throw;
  }
  run_queued(calls, done, deadline_s, recorder, collective, patience, lock);
}

void Messages::run_queued(std::span<const Call> calls, const Done& done, double deadline_s, trace::Recorder* recorder,
                          const Place* collective, const Patience& patience, Lock& lock) {
  std::array<Work::State, kFew> few;  // not on the heap
  const auto many = calls.size() > kFew ? std::make_unique<Work::State[]>(calls.size()) : nullptr;
  Work::State* const states = many != nullptr ? many.get() : few.data();
  size_t queued = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i < kFew && done[i]) continue;
    const std::shared_ptr<void> owner;  // none: the state outlives the message
    enqueue(calls[i], deadline_s, recorder, collective, {owner, &states[queued++]});
  }
  lock.unlock();
  if (queued > 0) drive({states, queued}, patience);
  for (size_t i = 0; i < queued; ++i) states[i].wait();
}

Work Messages::submit(const Call& call, double deadline_s, trace::Recorder* recorder) {
  const std::lock_guard lock(mutex_);
  const auto state = std::make_shared<Work::State>();
  check_health(call, nullptr);
  enqueue(call, deadline_s, recorder, nullptr, state);
  try {
    advance_all();
  } catch (...) {
    fail_all(Failure::of(std::current_exception()));
  }
  if (!idle()) {
    if (!thread_.joinable()) {
      thread_ = std::thread([this] {
        log::set_thread_rank(view_.world_rank());
        drive({}, options_.of_thread);
      });
    }
    view_.mine().message_bell.ring();  // the thread may be asleep without a deadline
  }
  return Work(state);
}

Place Messages::next_place(const Call& call) {
  const Buffer& data = call.operation == Operation::send ? call.input : call.output;
  return {.call = info_of(call, view_.segment->reachable(data.data, data.bytes())),
          .kind = "message",
          .number = queue_of(call).next_number};
}

void Messages::check_health(const Call& call, const Place* collective) {
  if (health_.nothing_happened()) return;
  if (collective != nullptr) return health_.check(collective);
  const Place place = next_place(call);
  health_.check(&place);
}

void Messages::enqueue(const Call& call, double deadline_s, trace::Recorder* recorder, const Place* collective,
                       std::shared_ptr<Work::State> state) {
  Queue& queue = queue_of(call);
  Message message;
  message.call = call;
  message.place = next_place(call);
  message.deadline.limit_s = deadline_s;
  message.collective = collective;
  message.recorder = recorder;
  message.state = std::move(state);
  queue.messages.push_back(std::move(message));
  ++queue.next_number;
}

void Messages::drive(States states, const Patience& patience) {
  if (patience.spin_s > 0 && !states.empty() && look_briefly([&] { return look_once(states); })) return;
  const Patience here = states.empty() ? Patience{} : patience_here(view_, patience);
  if (here.spin_s > 0) {
    const double until_s = now_s() + here.spin_s;
    do {
      if (drive_once(states)) return;
      relax_processor();
    } while (now_s() < until_s);
  }
  for (int i = 0; i < here.yields; ++i) {
    if (drive_once(states)) return;
    sched_yield();
  }
  Doorbell& bell = view_.mine().message_bell;
  while (true) {
    const uint32_t seen = bell.rings.load();
    bell.sleepers.fetch_add(1);
    const bool over = drive_once(states);
    if (!over) {
      double longest_s = 0;
      {
        const std::lock_guard lock(mutex_);
        longest_s = soonest_deadline_s();
      }
      sleep_until_rung(bell, seen, longest_s);
    }
    bell.sleepers.fetch_sub(1);
    if (over) return;
  }
}

bool Messages::over(States states) const {
  return states.empty() ? destroyed_ : std::ranges::all_of(states, [](const auto& state) { return state.done(); });
}

bool Messages::drive_once(States states) {
  const std::lock_guard lock(mutex_);
  try {
    advance_all();
    if (states.empty() || !over(states)) raise_if_stuck();
  } catch (...) {
    fail_all(Failure::of(std::current_exception()));
  }
  return over(states);
}

bool Messages::look_once(States states) {
  const std::lock_guard lock(mutex_);
  try {
    advance_all();
  } catch (...) {
    fail_all(Failure::of(std::current_exception()));
  }
  return over(states);
}

void Messages::advance_all() {
  for (int peer = 0; peer < view_.size(); ++peer) {
    advance(sends_[static_cast<size_t>(peer)], peer, true);
    advance(receives_[static_cast<size_t>(peer)], peer, false);
  }
}

void Messages::advance(Queue& queue, int peer, bool sends) {
  ChannelEnd& end = sends ? view_.channel(options_.what, view_.rank, peer).sender
                          : view_.channel(options_.what, peer, view_.rank).receiver;
  while (!queue.messages.empty()) {
    Message& message = queue.messages.front();
    if (!message.started) start(message, end);
    const bool through = sends ? send_fragments(queue, peer) : receive_fragments(message, peer);
    if (!through) return;
    finish(queue, end);
  }
}

void Messages::start(Message& message, ChannelEnd& end) {
  message.started = true;
  if (message.recorder != nullptr) message.started_s = now_s();
  end.call.store(message.place.call);
  if (message.place.call.detail_hash != 0) end.tag.store(message.place.call.tag);
  end.active.store(message.place.number, std::memory_order_release);
  message.ticket = record_start(message.place);
}

void Messages::finish(Queue& queue, ChannelEnd& end) {
  Message& message = queue.messages.front();
  end.active.store(0, std::memory_order_release);
  record_end(message.ticket);
  record_call(message.recorder, message.place.call, message.started_s);
  message.state->complete();
  queue.messages.pop_front();
}

bool Messages::has_room(Queue& queue, const Channel& channel) const {
  const uint64_t put = channel.sender.fragments.load(std::memory_order_relaxed);
  if (put - queue.seen_taken < kFragments) return true;
  queue.seen_taken = channel.receiver.fragments.load(std::memory_order_acquire);
  return put - queue.seen_taken < kFragments;
}

// Returns whether the data may be overwritten.
bool Messages::send_fragments(Queue& queue, int peer) {
  Message& message = queue.messages.front();
  Channel& channel = view_.channel(options_.what, view_.rank, peer);
  const int64_t bytes = message.place.call.bytes();
  const char* const data = static_cast<const char*>(message.call.input.data);
  const bool fetched = message.place.call.reachable && bytes > kFetchedBytes;
  bool all_put = message.last_fragment != 0 || (bytes > 0 && message.moved_bytes == bytes);
  while (!all_put) {
    if (!has_room(queue, channel)) return false;
    Fragment& fragment = channel.next_to_put();
    fragment.address = fetched ? view_.segment->encode(data) : 0;
    const int64_t moved = fragment_bytes(fragment, bytes - message.moved_bytes);
    if (!fetched) copy(fragment.data, data + message.moved_bytes, moved, false);
    message.moved_bytes += moved;
    all_put = message.moved_bytes == bytes;
    const uint64_t number = channel.put(fragment, message.place.call);
    if (fetched) message.last_fragment = number;
    view_.member(peer).message_bell.ring();
  }
  return message.last_fragment == 0 ||
         channel.receiver.fragments.load(std::memory_order_acquire) >= message.last_fragment;
}

// Returns whether all of it is here.
bool Messages::receive_fragments(Message& message, int peer) {
  Channel& channel = view_.channel(options_.what, peer, view_.rank);
  char* const data = static_cast<char*>(message.call.output.data);
  while (true) {
    const Fragment* const fragment = channel.next_to_take();
    if (fragment == nullptr) return false;
    if (message.moved_bytes == 0) check_fingerprint(message.place, *fragment, peer);
    const char* const from = fragment->address != 0 ? view_.segment->decode(fragment->address) : fragment->data;
    const int64_t moved = fragment_bytes(*fragment, message.place.call.bytes() - message.moved_bytes);
    copy(data + message.moved_bytes, from, moved, moved >= kStreamingBytes);
    message.moved_bytes += moved;
    channel.take();
    view_.member(peer).message_bell.ring();
    if (message.moved_bytes == message.place.call.bytes()) return true;
  }
}

void Messages::check_fingerprint(const Place& place, const Fragment& fragment, int peer) const {
  const CallInfo& own = place.call;
  if (fragment.call.same_data(own)) return;
  const CallInfo theirs = fragment.call.load(fragment.tag);
  const auto ranks = view_.world_ranks();
  health_.fail(Failure::Kind::protocol_mismatch,
               text("rank ", view_.world_rank(), ": ranks disagree on message ", place.number, " of group '",
                    view_.group->name, "': rank ", ranks[static_cast<size_t>(peer)], " made ", describe(theirs, ranks),
                    ", rank ", view_.world_rank(), " made ", describe(own, ranks),
                    ". Both sides of a message must give the same type, count and tag, in the same order"));
}

// After advance_all, so what stands still needs the peer.
void Messages::raise_if_stuck() {
  for (int peer = 0; peer < view_.size(); ++peer) {
    for (Queue* queue : {&sends_[static_cast<size_t>(peer)], &receives_[static_cast<size_t>(peer)]}) {
      if (queue->messages.empty()) continue;
      const uint64_t number = queue->messages.front().place.number;
      queue->messages.front().deadline.start();
      WaitEnd end = queue->messages.front().deadline.left_s() <= 0 ? WaitEnd::deadline : WaitEnd::ready;
      if (health_.disturbed(peer)) {
        advance(*queue, peer, queue == &sends_[static_cast<size_t>(peer)]);  // what came before it left counts
        end = WaitEnd::disturbed;
      }
      if (end == WaitEnd::ready || queue->messages.empty() || queue->messages.front().place.number != number) continue;
      const Message& message = queue->messages.front();
      health_.raise(end, {peer}, message.collective != nullptr ? *message.collective : message.place, message.deadline);
    }
  }
}

void Messages::fail_all(const Failure& failure) {
  if (options_.flight != nullptr) options_.flight->failed(failure);
  for (std::vector<Queue>* queues : {&sends_, &receives_}) {
    for (Queue& queue : *queues) {
      for (Message& message : queue.messages) health_.conclude(std::move(message.state), failure);
      queue.messages.clear();
    }
  }
}

double Messages::soonest_deadline_s() const {
  double soonest = std::numeric_limits<double>::infinity();
  for (const std::vector<Queue>* queues : {&sends_, &receives_}) {
    for (const Queue& queue : *queues) {
      if (!queue.messages.empty()) soonest = std::min(soonest, queue.messages.front().deadline.left_s());
    }
  }
  return soonest;
}

bool Messages::idle() const {
  for (size_t peer = 0; peer < sends_.size(); ++peer) {
    if (!sends_[peer].messages.empty() || !receives_[peer].messages.empty()) return false;
  }
  return true;
}

}  // namespace lockstep::comm::host
