// Sends and receives of one rank in one group: the user's, or those of its step programs.
//
// Each direction to each peer is a queue of its own, whose first message makes progress while the others of that queue
// wait. Whoever waits for a message drives all queues, so no message waits behind one to or from another peer, and none
// behind a collective. For asynchronous messages that do not end at once a thread drives them; it sleeps between
// changes. A blocking call of one or two short messages that nothing is queued before passes the queues by, unless it
// has to wait (messages_at_once.cc).
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/host/health.h"
#include "lockstep/comm/work.h"

namespace lockstep::trace {
class Recorder;
}

namespace lockstep::comm::host {

class Messages {
 public:
  struct Options {
    Carries what = Carries::messages;
    Patience of_caller, of_thread;
    const FlightLog* flight = nullptr;  // steps of programs are none of the operations that it records
  };
  Messages(const GroupView& view, Health& health, const Options& options);
  // Messages under way fail. `health` has been abandoned.
  ~Messages();

  // Returns when all are done; they make progress beside one another.
  void run(std::span<const Call> calls, double deadline_s, trace::Recorder* recorder);
  // The same for a round of a step program: errors speak of the collective, `place`.
  void run_round(std::span<const comm::Message> round, const Place& place, double deadline_s, const Patience& patience);
  Work submit(const Call& call, double deadline_s, trace::Recorder* recorder);

 private:
  struct Message {
    Call call;
    Place place;
    const Place* collective = nullptr;  // whose step this is; errors speak of it
    Deadline deadline;
    trace::Recorder* recorder = nullptr;
    std::shared_ptr<Work::State> state;
    uint64_t ticket = 0;   // of the flight recorder
    bool started = false;  // at the head of its queue
    double started_s = 0;  // for the recorder
    int64_t moved_bytes = 0;
    uint64_t last_fragment = 0;  // of a send whose data the receiver fetches: done when this one is taken
  };
  struct Queue {
    std::deque<Message> messages;
    uint64_t next_number = 1;
    uint64_t seen_taken = 0;  // of the fragments sent, when last looked
  };

  // Which messages of a call are done without a queue.
  static constexpr size_t kFew = 2;  // a send and a receive
  using Done = std::array<bool, kFew>;
  using Lock = std::unique_lock<std::mutex>;

  void run_all(std::span<const Call> calls, double deadline_s, trace::Recorder* recorder, const Place* collective,
               const Patience& patience);
  // Those of `calls` that are not done; lets the lock go.
  void run_queued(std::span<const Call> calls, const Done& done, double deadline_s, trace::Recorder* recorder,
                  const Place* collective, const Patience& patience, Lock& lock);

  // All of these hold the lock.
  //   returns  whether all are done now
  bool run_at_once(std::span<const Call> calls, const Patience& patience, Done& done, Lock& lock);
  bool try_at_once(std::span<const Call> calls, bool looks, Done& done);
  bool may_pass_queue(const Call& call);
  bool send_at_once(const Call& call);
  bool receive_at_once(const Call& call);
  Place next_place(const Call& call);
  void check_health(const Call& call, const Place* collective);
  void enqueue(const Call& call, double deadline_s, trace::Recorder* recorder, const Place* collective,
               std::shared_ptr<Work::State> state);

  // Until all of `states` are done; for the thread (none) until this rank destroys the group.
  using States = std::span<const Work::State>;
  void drive(States states, const Patience& patience);
  bool drive_once(States states);  // whether that has come
  bool look_once(States states);   // the same without asking whether it can still come

  // All of these hold the lock.
  void advance_all();
  void advance(Queue& queue, int peer, bool sends);
  void start(Message& message, ChannelEnd& end);
  bool send_fragments(Queue& queue, int peer);
  bool receive_fragments(Message& message, int peer);
  bool has_room(Queue& queue, const Channel& channel) const;
  void check_fingerprint(const Place& place, const Fragment& fragment, int peer) const;
  void finish(Queue& queue, ChannelEnd& end);
  void raise_if_stuck();
  void fail_all(const Failure& failure);
  double soonest_deadline_s() const;
  bool over(States states) const;
  bool idle() const;

  uint64_t record_start(const Place& place) const {
    return options_.flight == nullptr ? 0 : options_.flight->begin("message", place.number, place.call);
  }
  void record_end(uint64_t ticket) const {
    if (options_.flight != nullptr) options_.flight->end(ticket);
  }
  Queue& queue_of(const Call& call) {
    return (call.operation == Operation::send ? sends_ : receives_)[static_cast<size_t>(call.peer)];
  }

  GroupView view_;
  Health& health_;
  const Options options_;
  std::mutex mutex_;
  std::vector<Queue> sends_, receives_;  // by peer
  bool destroyed_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm::host
