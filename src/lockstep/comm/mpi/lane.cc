#include "lockstep/comm/mpi/lane.h"

#include "lockstep/base/clock.h"
#include "lockstep/comm/record_call.h"

namespace lockstep::comm::mpi {

Lane::Lane(const Health& health, const Pace& of_caller, int world_rank, Execute execute)
    : health_(health),
      of_caller_(of_caller),
      execute_(std::move(execute)),
      queue_({.world_rank = world_rank,
              .execute =
                  [this](const Call& call, double deadline_s, trace::Recorder* recorder) {
                    this->execute(call, deadline_s, recorder, Pace::of_thread());
                  },
              .fail = [this](std::shared_ptr<Work::State> state,
                             const Failure& failure) { health_.conclude(std::move(state), failure); }}) {}

void Lane::run(const Call& call, double deadline_s, trace::Recorder* recorder) {
  if (queue_.idle()) {
    execute(call, deadline_s, recorder, of_caller_);
  } else {
    submit(call, deadline_s, recorder).wait();
  }
}

Work Lane::submit(const Call& call, double deadline_s, trace::Recorder* recorder) {
  const Place place{.call = info_of(call), .kind = "queued call"};
  health_.check(&place);
  return queue_.submit(call, deadline_s, recorder);
}

void Lane::execute(const Call& call, double deadline_s, trace::Recorder* recorder, const Pace& pace) {
  const std::lock_guard lock(execution_);
  const double start_s = recorder != nullptr ? now_s() : 0;
  execute_(call, deadline_s, pace);
  if (recorder != nullptr) record_call(recorder, info_of(call), start_s);
}

}  // namespace lockstep::comm::mpi
