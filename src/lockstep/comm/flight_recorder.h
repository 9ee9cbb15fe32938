// The last operations of one rank over all its groups, kept in fixed memory at a few nanoseconds each, and written when
// a call fails: what every rank was in, and what it had done before, at the time of a failure.
//
//   FOLDER/flight.rank2.json      by each rank whose call failed
//   merge_flight_records(FOLDER)  all of them as one picture: who is where
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/host/shared_call.h"

namespace lockstep::comm {

class FlightRecorder {
 public:
  static constexpr size_t kOperations = 256;

  explicit FlightRecorder(int world_rank) : world_rank_(world_rank) {}

  // Nothing is written before this. Several threads may do all that follows.
  void set_folder(std::string folder);

  uint32_t add_group(std::string_view name);
  // returns  a ticket for end()
  uint64_t begin(uint32_t group, std::string_view kind, uint64_t number, const CallInfo& call);
  void end(uint64_t ticket);

  // Writes what is recorded, at the first failure; later ones are consequences. Other kinds of failure than lost peers,
  // deadlines and mismatches are the caller's own and write nothing. An error in writing is logged.
  void failed(const Failure& failure) noexcept;

 private:
  // Relaxed atomics: the writer of the file reads them while others record.
  struct Operation {
    std::atomic<uint64_t> ticket{0};  // 0: none
    std::atomic<bool> is_message{false}, has_ended{false};
    std::atomic<uint32_t> group{0};
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> started_ticks{0};
    host::SharedCall call;
    host::SharedTag tag;
  };

  std::string to_json(const Failure& failure) const;

  const int world_rank_;
  const uint64_t first_ticks_ = ticks();  // at first_s_: together with a later pair they tell the rate
  const double first_s_ = now_s();
  std::array<Operation, kOperations> operations_;
  std::atomic<uint64_t> next_ticket_{1};
  mutable std::mutex mutex_;  // of what follows
  std::vector<std::string> groups_;
  std::string folder_;
  bool written_ = false;
};

// One group's way to its rank's recorder.
class FlightLog {
 public:
  FlightLog(FlightRecorder& recorder, std::string_view group)
      : recorder_(recorder), group_(recorder.add_group(group)) {}

  uint64_t begin(std::string_view kind, uint64_t number, const CallInfo& call) const {
    return recorder_.begin(group_, kind, number, call);
  }
  void end(uint64_t ticket) const { recorder_.end(ticket); }
  void failed(const Failure& failure) const noexcept { recorder_.failed(failure); }
  // What `work` throws is a failure.
  template <class Work>
  void watch(Work work) const {
    try {
      work();
    } catch (...) {
      failed(Failure::of(std::current_exception()));
      throw;
    }
  }

 private:
  FlightRecorder& recorder_;
  const uint32_t group_;
};

// What the ranks wrote into a folder, group by group: the last call that each rank ended, the one that it is in, and
// which ranks wrote nothing.
//   throws  InvalidArgument when there is no record, or one that cannot be read
std::string merge_flight_records(const std::filesystem::path& folder);

// Those of an earlier run would be taken for this one's.
void remove_flight_records(const std::filesystem::path& folder);

}  // namespace lockstep::comm
