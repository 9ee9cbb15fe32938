#include "lockstep/comm/work.h"

namespace lockstep::comm {

void Work::State::complete(Failure failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  done_ = true;
  completed_.notify_all();
}

bool Work::State::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Work::State::synchronize() const {
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [this] { return done_; });
  if (failure_) failure_.raise();
}

void Work::State::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) failure_.raise();
}

void Work::wait() const {
  if (state_) state_->wait();
}

void Work::synchronize() const {
  if (state_) state_->synchronize();
}

bool Work::done() const {
  return !state_ || state_->done();
}

}  // namespace lockstep::comm
