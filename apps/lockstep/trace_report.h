// A recorded run beside its prediction, for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/trace/compare.h"

namespace lockstep::cli {

// The predicted step and the recorded one of median time, one above the other, on one scale.
std::string timelines(const trace::TraceComparison& comparison);
// Terms, longest waits, and whether ranks did what was predicted.
std::string table(const trace::TraceComparison& comparison);
nlohmann::ordered_json to_json(const trace::TraceComparison& comparison);

// Of RUN/simulated.json and RUN/trace.json. throws InvalidArgument naming the file that is missing or no trace
trace::TraceComparison compare_run(const std::string& run);
trace::TraceComparison compare_files(const std::string& predicted, const std::string& recorded);

}  // namespace lockstep::cli
