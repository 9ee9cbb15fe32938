#include "lockstep/comm/nccl/device_call.h"

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/comm/record_call.h"

namespace lockstep::comm::nccl {

std::vector<cudaStream_t> streams_of(const Call& call) {
  std::vector<cudaStream_t> streams;
  for (const Buffer* buffer : {&call.input, &call.output}) {
    auto* const stream = static_cast<cudaStream_t>(buffer->stream);
    if (buffer->device == Device::cuda && std::ranges::find(streams, stream) == streams.end()) {
      streams.push_back(stream);
    }
  }
  return streams;
}

DeviceCall::DeviceCall(const Call& call, Options options)
    : info_(info_of(call)),
      options_(std::move(options)),
      streams_(streams_of(call)),
      kept_{call.input.keep_alive, call.output.keep_alive} {}

void DeviceCall::wait() const {
  State::check();
  for (cudaStream_t stream : streams_) options_.span->end.hold(stream);
}

void DeviceCall::synchronize() const {
  options_.hosts_waiting->fetch_add(1);
  try {
    State::synchronize();
  } catch (...) {
    options_.hosts_waiting->fetch_sub(1);
    throw;
  }
  options_.hosts_waiting->fetch_sub(1);
}

bool DeviceCall::agreed() {
  if (!agreed_ && options_.check.done()) {
    options_.check.conclude();
    agreed_ = true;
  }
  return agreed_;
}

bool DeviceCall::has_begun() {
  if (begun_s_ == 0 && options_.span->begin.passed()) begun_s_ = now_s();
  return begun_s_ != 0;
}

void DeviceCall::conclude(const Failure& failure) {
  kept_.clear();
  if (!failure && has_begun()) record_call(options_.recorder, info_, begun_s_);
  complete(failure);
}

}  // namespace lockstep::comm::nccl
