// Puts an ended call into the trace: "all_reduce bucket 3" on the communication track.
#pragma once

#include "lockstep/comm/call_info.h"

namespace lockstep::comm {

// From `start_s` until now. A null recorder records nothing.
void record_call(trace::Recorder* recorder, const CallInfo& call, double start_s);

}  // namespace lockstep::comm
