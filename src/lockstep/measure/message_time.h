// What a message between two ranks of this host takes, before any rank is there.
#pragma once

#include <cstdint>

#include "lockstep/cost/linear_time.h"

namespace lockstep::measure {

// By its bytes. Two threads join a world of their own as processes do, each with a mapping of its own, and send to and
// fro what is in memory that peers do not reach, as pipeline stages do. Measured up to `bytes`, in some 0.1 s, of long
// messages in as much as 14 of them take.
//   throws   Unsupported when the host gives no memory file
cost::LinearTime message_time(int64_t bytes);

}  // namespace lockstep::measure
