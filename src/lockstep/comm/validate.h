// What every backend asks of a call before it does anything.
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Of a call that this rank of a group of `size` makes on memory of `device`.
//   throws  InvalidArgument for a call that no group of this size could execute; Unsupported for memory elsewhere
void validate(const Call& call, int rank, int size, Device device = Device::cpu);

}  // namespace lockstep::comm
