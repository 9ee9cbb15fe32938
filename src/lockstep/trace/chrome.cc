#include "lockstep/trace/chrome.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"

namespace lockstep::trace {
namespace {

using nlohmann::json;

json metadata(const char* what, int rank, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

json complete_event(const Event& event, double origin_s) {
  json args = json::object();
  if (event.bytes != 0) args["bytes"] = event.bytes;
  if (event.stage >= 0) args["stage"] = event.stage;
  if (event.microbatch >= 0) args["microbatch"] = event.microbatch;
  return {{"ph", "X"},
          {"name", std::string(event.name())},
          {"pid", event.rank},
          {"tid", static_cast<int>(event.track)},
          {"ts", (event.start_s - origin_s) * 1e6},
          {"dur", event.duration_s * 1e6},
          {"args", args}};
}

}  // namespace

void write_chrome(std::ostream& out, std::span<const Event> events) {
  double origin_s = 0;
  std::set<int> ranks;
  for (const Event& event : events) {
    origin_s = ranks.empty() ? event.start_s : std::min(origin_s, event.start_s);
    ranks.insert(event.rank);
  }
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto write = [&](const json& line) {
    out << separator << line.dump();
    separator = ",\n";
  };
  for (const int rank : ranks) {
    write(metadata("process_name", rank, 0, text("rank ", rank)));
    write(metadata("thread_name", rank, static_cast<int>(Track::compute), "compute"));
    write(metadata("thread_name", rank, static_cast<int>(Track::communication), "communication"));
  }
  for (const Event& event : events) write(complete_event(event, origin_s));
  out << "\n]}\n";
}

void write_chrome_file(const std::string& path, std::span<const Event> events) {
  std::ofstream out(path);
  write_chrome(out, events);
  out.close();
  if (!out) throw InvalidArgument(text("cannot write the trace to ", path, ": check the folder and the space left"));
}

std::vector<Event> read_chrome(std::istream& in) {
  std::vector<Event> events;
  try {
    const json document = json::parse(in);
    for (const json& line : document.at("traceEvents")) {
      if (line.at("ph") != "X") continue;
      Event event;
      event.rank = line.at("pid");
      event.track = line.at("tid") == 0 ? Track::compute : Track::communication;
      event.set_name(line.at("name").get<std::string>());
      event.start_s = line.at("ts").get<double>() * 1e-6;
      event.duration_s = line.at("dur").get<double>() * 1e-6;
      const json& args = line.at("args");
      event.bytes = args.value("bytes", int64_t{0});
      event.stage = args.value("stage", -1);
      event.microbatch = args.value("microbatch", -1);
      events.push_back(event);
    }
  } catch (const json::exception& error) {
    throw InvalidArgument(text("not a trace of ours: ", error.what()));
  }
  return events;
}

}  // namespace lockstep::trace
