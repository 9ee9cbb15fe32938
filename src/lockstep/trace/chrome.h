// Writes events in the Chrome trace format, which Perfetto and chrome://tracing open: one process per rank, in it one
// thread for compute and one for communication.
//   source   "Trace Event Format" (Google, 2016): complete events, ts and dur in microseconds
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "lockstep/trace/event.h"

namespace lockstep::trace {

// Times are written relative to the earliest event. Throws InvalidArgument when the file cannot be written.
void write_chrome(std::ostream& out, std::span<const Event> events);
void write_chrome_file(const std::string& path, std::span<const Event> events);

// Reads back what write_chrome wrote. Throws InvalidArgument for anything else.
std::vector<Event> read_chrome(std::istream& in);

}  // namespace lockstep::trace
