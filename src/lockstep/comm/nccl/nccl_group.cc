#include "lockstep/comm/nccl/nccl_group.h"

#include <algorithm>
#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/comm/nccl/nccl_world.h"
#include "lockstep/comm/nccl/operations.h"
#include "lockstep/comm/validate.h"

namespace lockstep::comm::nccl {
namespace {

// A buffer that every rank of the call has.
const Buffer& common_buffer(const Call& call) {
  const bool output = call.operation == Operation::scatter || call.operation == Operation::receive;
  return output ? call.output : call.input;
}

bool is_on_device(const Call& call) {
  return call.operation != Operation::barrier && common_buffer(call).device == Device::cuda;
}

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

NcclGroup::OnDevice::OnDevice(ProcessGroup& host, int device, double deadline_s)
    : check(host),
      communicator(
          check.side(),
          {.device = device, .name = host.name(), .deadline_s = deadline_s, .look = [&host] { host.check(); }}),
      watchdog({.world_rank = host.world_rank(host.rank()),
                .device = device,
                .look =
                    [this, &host] {
                      communicator.look_for_errors();
                      host.check();
                    },
                .look_at_host = [&host] { host.check(); },
                .abort = [this] { communicator.abort(); }}) {}

NcclGroup::NcclGroup(std::unique_ptr<ProcessGroup> host) : host_(std::move(host)) {}

NcclGroup::~NcclGroup() {
  if (on_device_ == nullptr || std::uncaught_exceptions() == 0) return;
  on_device_->watchdog.fail(
      {Failure::Kind::invalid_argument,
       text("rank ", world_rank(rank()), ": group '", name(),
            "' was destroyed before its calls were through, since this rank ends with an error")});
}

std::chrono::milliseconds NcclGroup::deadline(const Call& call) const {
  return call.options.deadline.value_or(default_deadline());
}

void NcclGroup::refuse_what_nccl_cannot(const Call& call) const {
  if (call.options.balanced_tree && reduces(call.operation) && size() > 2) {  // of two there is only one order
    throw InvalidArgument(text(describe(call), ": NCCL does not add in the balanced tree over ", size(),
                               " ranks; reduce on the host, or on 2 ranks"));
  }
  const std::string_view asked = call.options.algorithm;
  if (asked.empty() || asked == collective::kNative) return;
  throw InvalidArgument(text(describe(call), ": there is no algorithm ", asked,
                             " for memory of GPUs (nearest: ", collective::kNative, ")"));
}

int NcclGroup::device_of(std::span<const Call> calls) const {
  std::optional<int> device;
  if (on_device_ != nullptr) device = on_device_->communicator.device();
  for (const Call& call : calls) {
    for (const Buffer* buffer : {&call.input, &call.output}) {
      if (buffer->device != Device::cuda || buffer->data == nullptr) continue;
      const int used = nccl::device_of(buffer->data);
      if (device.value_or(used) != used) {
        throw InvalidArgument(text(describe(call), ": group '", name(), "' works on GPU ", *device,
                                   " of this host, but the memory is GPU ", used, "'s; a rank of a group uses one"));
      }
      device = used;
    }
  }
  return device ? *device : nccl::device_of(nullptr);
}

void NcclGroup::run(const Call& call) {
  if (is_on_device(call)) return submit(call).wait();
  host_->run(call);
}

Work NcclGroup::submit(const Call& call) {
  if (is_on_device(call)) return submit_batch({&call, 1}).front();
  return host_->submit(call);
}

void NcclGroup::run_batch(std::span<const Call> calls) {
  if (std::ranges::none_of(calls, is_on_device)) return host_->run_batch(calls);
  for (const Work& work : submit_batch(calls)) work.wait();
}

std::vector<Work> NcclGroup::submit_batch(std::span<const Call> calls) {
  if (std::ranges::none_of(calls, is_on_device)) return host_->submit_batch(calls);
  for (const Call& call : calls) {
    validate(call, rank(), size(), Device::cuda);
    refuse_what_nccl_cannot(call);
  }
  const std::lock_guard lock(mutex_);
  const int device = device_of(calls);
  if (on_device_ != nullptr) on_device_->watchdog.check();
  const std::string during = text(describe(calls.front()), " on group '", name(), "'");
  try {
    if (on_device_ == nullptr) {
      on_device_ = std::make_unique<OnDevice>(*host_, device, seconds(deadline(calls.front())));
    }
    return put(calls, device);
  } catch (...) {
    const Failure failure = Failure::of(std::current_exception()).during(during, world_rank(rank()));
    if (on_device_ == nullptr) failure.raise();
    on_device_->watchdog.fail(failure);
    on_device_->watchdog.check();  // it may have known why before
    throw;
  }
}

std::vector<Work> NcclGroup::put(std::span<const Call> calls, int device) {
  const CurrentDevice current(device);
  auto& [check, communicator, watchdog] = *on_device_;
  const auto span = std::make_shared<Span>();
  std::vector<std::shared_ptr<DeviceCall>> started;
  for (const Call& call : calls) {
    started.push_back(
        std::make_shared<DeviceCall>(call, DeviceCall::Options{.check = check.start(info_of(call), deadline(call)),
                                                               .span = span,
                                                               .deadline_s = seconds(deadline(call)),
                                                               .recorder = recorder(),
                                                               .hosts_waiting = watchdog.hosts_waiting()}));
    for (cudaStream_t stream : streams_of(call)) {
      Event here;  // what the caller has put on its stream comes first
      here.record(stream);
      here.hold(communicator.stream());
    }
  }
  span->begin.record(communicator.stream());
  std::vector<std::unique_ptr<StreamMemory>> copies;
  for (const Call& call : calls) copies.push_back(copy_if_in_place(call, communicator.stream()));
  communicator.enqueue(
      [&](ncclComm_t comm) {
        for (size_t i = 0; i < calls.size(); ++i) {
          put_on_stream(calls[i], rank(), size(), copies[i] != nullptr ? copies[i]->data() : nullptr, comm,
                        communicator.stream());
        }
      },
      started.front()->place());
  copies.clear();
  span->end.record(communicator.stream());
  std::vector<Work> works;
  for (std::shared_ptr<DeviceCall>& call : started) {
    watchdog.watch(call);
    works.emplace_back(std::move(call));
  }
  return works;
}

std::unique_ptr<ProcessGroup> NcclGroup::split(std::span<const int> ranks, std::string_view name) {
  return std::make_unique<NcclGroup>(host_->split(ranks, name));
}

void NcclGroup::check() const {
  {
    const std::lock_guard lock(mutex_);
    if (on_device_ != nullptr) on_device_->watchdog.check();
  }
  host_->check();
}

}  // namespace lockstep::comm::nccl

namespace lockstep::comm {

std::string_view nccl_missing_because() {
  return "";
}

int num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<ProcessGroup> with_nccl(std::unique_ptr<ProcessGroup> host) {
  return std::make_unique<nccl::NcclGroup>(std::move(host));
}

}  // namespace lockstep::comm
