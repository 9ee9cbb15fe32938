#include "lockstep/parallel/pipeline/pipeline_stage.h"

namespace lockstep::parallel {

std::optional<at::Device> PipelineStage::device() const {
  if (!module) return std::nullopt;
  for (const auto& parameter : module->parameters()) return parameter.device();
  for (const auto& buffer : module->buffers()) return buffer.device();
  return std::nullopt;
}

at::Tensor PipelineStage::run(const at::Tensor& input) const {
  const std::optional<at::Device> target = device();
  return forward(target ? input.to(*target, /*non_blocking=*/true) : input);
}

}  // namespace lockstep::parallel
