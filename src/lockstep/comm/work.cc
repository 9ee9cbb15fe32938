#include "lockstep/comm/work.h"

namespace lockstep::comm {

void Work::State::complete(Failure failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  done_.store(true, std::memory_order_release);
  completed_.notify_all();
}

void Work::State::synchronize() const {
  if (!done()) {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [this] { return done(); });
  }
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
