// Built instead of the rest of this folder where there is no NCCL.
#include "lockstep/comm/nccl/nccl_world.h"

namespace lockstep::comm {

std::string_view nccl_missing_because() {
  return "it was built without LOCKSTEP_CUDA; ./check --cuda-build builds it";
}

int num_gpus() {
  return 0;
}

std::unique_ptr<ProcessGroup> with_nccl(std::unique_ptr<ProcessGroup>) {
  throw Unsupported(text("backend nccl: ", nccl_missing_because()));
}

}  // namespace lockstep::comm
