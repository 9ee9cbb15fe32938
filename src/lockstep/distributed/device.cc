#include "lockstep/distributed/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "lockstep/base/error.h"

namespace lockstep {

int device_count(c10::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

c10::Device pick_device(const std::string& name, int local_rank) {
  if (name != "cpu" && name != "cuda" && name != "auto") {
    throw InvalidArgument(Problem{"run.device", name, "must be cpu, cuda or auto", "cpu"}.message());
  }
  const int gpus = name == "cpu" ? 0 : device_count(c10::kCUDA);
  if (name == "cpu" || (name == "auto" && gpus == 0)) return c10::kCPU;
  if (gpus == 0) {
    throw Unsupported(Problem{"run.device", name,
                              "this libtorch sees no CUDA device; name a CUDA build with LOCKSTEP_TORCH_DIR", "cpu"}
                          .message());
  }
  if (local_rank >= gpus) {
    throw Unsupported(text("run.device = ", name, ": local rank ", local_rank, " has no GPU of its own, this host has ",
                           gpus, " (nearest: --ranks ", gpus, ")"));
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  const auto* runtime = c10::impl::getDeviceGuardImpl(device.type());
  runtime->synchronizeStream(runtime->getStream(device));
}

void* current_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device).native_handle();
}

}  // namespace lockstep
