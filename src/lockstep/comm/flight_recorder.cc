#include "lockstep/comm/flight_recorder.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::comm {

using nlohmann::json;

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

bool is_between_ranks(Failure::Kind kind) {
  return kind == Failure::Kind::peer_lost || kind == Failure::Kind::deadline_exceeded ||
         kind == Failure::Kind::protocol_mismatch;
}

// A rank has one recorder for each way of communicating that it uses.
std::filesystem::path unused_file(const std::filesystem::path& folder, int rank) {
  std::filesystem::path path = folder / text("flight.rank", rank, ".json");
  for (int i = 2; std::filesystem::exists(path); ++i) path = folder / text("flight.rank", rank, ".", i, ".json");
  return path;
}

}  // namespace

void FlightRecorder::set_folder(std::string folder) {
  const std::lock_guard lock(mutex_);
  folder_ = std::move(folder);
}

uint32_t FlightRecorder::add_group(std::string_view name) {
  const std::lock_guard lock(mutex_);
  groups_.emplace_back(name);
  return static_cast<uint32_t>(groups_.size() - 1);
}

uint64_t FlightRecorder::begin(uint32_t group, std::string_view kind, uint64_t number, const CallInfo& call) {
  const uint64_t ticket = next_ticket_.fetch_add(1, kRelaxed);
  Operation& operation = operations_[ticket % kOperations];
  operation.ticket.store(0, kRelaxed);  // not to be read while it changes
  operation.is_message.store(kind == "message", kRelaxed);
  operation.has_ended.store(false, kRelaxed);
  operation.group.store(group, kRelaxed);
  operation.number.store(number, kRelaxed);
  operation.started_ticks.store(ticks(), kRelaxed);
  operation.call.store(call);
  if (call.detail_hash != 0) operation.tag.store(call.tag);
  operation.ticket.store(ticket, std::memory_order_release);
  return ticket;
}

void FlightRecorder::end(uint64_t ticket) {
  Operation& operation = operations_[ticket % kOperations];
  if (operation.ticket.load(kRelaxed) == ticket) operation.has_ended.store(true, kRelaxed);
}

void FlightRecorder::failed(const Failure& failure) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!is_between_ranks(failure.kind) || folder_.empty() || std::exchange(written_, true)) return;
    std::filesystem::create_directories(folder_);
    const std::filesystem::path path = unused_file(folder_, world_rank_);
    std::ofstream file(path);
    file << to_json(failure) << std::endl;
    if (!file) log::error(text("cannot write the record of the last operations, ", path.string()));
  } catch (const std::exception& error) {
    log::error(text("cannot write the record of the last operations: ", error.what()));
  }
}

std::string FlightRecorder::to_json(const Failure& failure) const {
  const uint64_t now_ticks = ticks();
  const double s_per_tick = (now_s() - first_s_) / static_cast<double>(now_ticks - first_ticks_);
  json operations = json::array();
  const uint64_t end = next_ticket_.load();
  for (uint64_t ticket = end > kOperations ? end - kOperations : 1; ticket < end; ++ticket) {
    const Operation& operation = operations_[ticket % kOperations];
    if (operation.ticket.load(std::memory_order_acquire) != ticket) continue;
    operations.push_back(
        {{"group", groups_[operation.group.load(kRelaxed)]},
         {"kind", operation.is_message.load(kRelaxed) ? "message" : "call"},
         {"number", operation.number.load(kRelaxed)},
         {"call", describe(operation.call.load(operation.tag))},
         {"ended", operation.has_ended.load(kRelaxed)},
         {"started_s_ago", static_cast<double>(now_ticks - operation.started_ticks.load(kRelaxed)) * s_per_tick}});
  }
  return json{{"rank", world_rank_}, {"failure", failure.message}, {"groups", groups_}, {"operations", operations}}
      .dump(1);
}

// -- merging --------------------------------------------------------------------------------------------------------

namespace {

struct Record {
  int rank = 0;
  json content;
};

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;  // no such folder: no files
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight.rank") && name.ends_with(".json")) files.push_back(entry.path());
  }
  return files;
}

std::vector<Record> read_records(const std::filesystem::path& folder) {
  std::vector<Record> records;
  for (const std::filesystem::path& file : files_of(folder)) {
    try {
      std::ifstream stream(file);
      json content = json::parse(stream);
      const int rank = content.at("rank").get<int>();
      records.push_back({rank, std::move(content)});
    } catch (const json::exception& problem) {
      throw InvalidArgument(text(file.string(), " is no record of operations: ", problem.what()));
    }
  }
  if (records.empty())
    throw InvalidArgument(text(folder.string(), " holds no flight.rankN.json: no rank's call failed"));
  std::ranges::sort(records, {}, &Record::rank);
  return records;
}

std::string line_of(const json& operation) {
  return text(operation.at("kind").get<std::string>(), " ", operation.at("number").get<uint64_t>(), " ",
              operation.at("call").get<std::string>());
}

// What one rank did last in one group.
std::string state_in(const json& record, const std::string& group) {
  const json* ended = nullptr;
  std::vector<const json*> under_way;
  for (const json& operation : record.at("operations")) {
    if (operation.at("group") != group) continue;
    if (operation.at("ended").get<bool>()) {
      ended = &operation;
    } else {
      under_way.push_back(&operation);
    }
  }
  std::string state;
  for (const json* operation : under_way) {
    const double seconds = operation->at("started_s_ago").get<double>();
    state +=
        text(state.empty() ? "in " : ", and in ", line_of(*operation), ", for ", std::round(seconds * 100) / 100, " s");
  }
  if (state.empty()) state = "in no call";
  return state + (ended != nullptr ? text("; ended last: ", line_of(*ended)) : "; had ended none");
}

}  // namespace

std::string merge_flight_records(const std::filesystem::path& folder) {
  const std::vector<Record> records = read_records(folder);
  std::ostringstream picture;
  std::map<std::string, std::vector<const Record*>> records_by_group;
  std::vector<std::string> groups;  // in the order in which ranks made them
  for (const Record& record : records) {
    for (const json& group : record.content.at("groups")) {
      auto& members = records_by_group[group.get<std::string>()];
      if (members.empty()) groups.push_back(group.get<std::string>());
      if (members.empty() || members.back() != &record) members.push_back(&record);
    }
  }
  for (const std::string& group : groups) {
    picture << "group '" << group << "'\n";
    for (const Record* record : records_by_group[group]) {
      picture << "  rank " << record->rank << "  " << state_in(record->content, group) << "\n";
    }
  }
  for (const Record& record : records) {
    picture << "rank " << record.rank << " failed with: " << record.content.at("failure").get<std::string>() << "\n";
  }
  picture << "A rank that is not listed wrote no record: it had died, stood still, or was in no call that failed.\n";
  return picture.str();
}

void remove_flight_records(const std::filesystem::path& folder) {
  for (const std::filesystem::path& file : files_of(folder)) std::filesystem::remove(file);
}

}  // namespace lockstep::comm
