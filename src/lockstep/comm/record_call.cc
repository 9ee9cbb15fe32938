#include "lockstep/comm/record_call.h"

#include "lockstep/base/clock.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::comm {

void record_call(trace::Recorder* recorder, const CallInfo& call, double start_s) {
  if (recorder == nullptr) return;
  std::string event(name(call.operation));
  if (!call.tag.empty()) event.append(" ").append(call.tag);
  recorder->record(trace::Track::communication, event, start_s, now_s(), call.bytes());
}

}  // namespace lockstep::comm
