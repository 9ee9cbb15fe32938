// What every backend asks of a call before it does anything.
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Of a call that this rank of a group of `size` makes on host memory.
//   throws  InvalidArgument for a call that no group of this size could execute; Unsupported for memory of a device
void validate(const Call& call, int rank, int size);

}  // namespace lockstep::comm
