// What ranks leave behind when a call between them fails.
#include "lockstep/comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process/in_process.h"

namespace lockstep::comm {
namespace {

using testing::HasSubstr;

class FlightRecords : public testing::Test {
 protected:
  FlightRecords() { std::filesystem::remove_all(folder_); }
  ~FlightRecords() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_ = std::filesystem::temp_directory_path() / text("lockstep-flight-", getpid());
};

void all_reduce(ProcessGroup& group, std::string_view tag) {
  float value = 1;
  group.all_reduce({.data = &value, .count = 1}, Reduction::sum, {.tag = tag});
}

TEST_F(FlightRecords, SayWhichRankIsWhere) {
  const auto program = [this](ProcessGroup& world) {
    world.set_flight_folder(folder_.string());
    const int members[] = {0, 1};
    const auto pair = world.rank() < 2 ? world.split(members, "pair") : nullptr;
    all_reduce(world, "first");
    if (pair != nullptr) all_reduce(*pair, "of two");
    if (world.rank() == 1) {
      world.barrier();
    } else {
      all_reduce(world, "second");
    }
  };
  EXPECT_THROW(run_ranks(3, {}, program), ProtocolMismatch);
  const std::string picture = merge_flight_records(folder_);
  EXPECT_THAT(picture, HasSubstr("group 'world'\n"));
  EXPECT_THAT(picture, HasSubstr("  rank 0  in call 2 all_reduce(sum) of 1 f32 [second], for "));
  EXPECT_THAT(picture, HasSubstr("  rank 1  in call 2 barrier, for "));
  EXPECT_THAT(picture, HasSubstr("; ended last: call 1 all_reduce(sum) of 1 f32 [first]\n"));
  EXPECT_THAT(picture,
              HasSubstr("group 'pair'\n  rank 0  in no call; ended last: call 1 all_reduce(sum) of 1 f32 [of two]"));
  EXPECT_THAT(picture, HasSubstr("rank 2 failed with: rank 2"));
}

TEST_F(FlightRecords, KeepTheLastOperationsOnly) {
  FlightRecorder recorder(7);
  const FlightLog log(recorder, "data");
  recorder.set_folder(folder_.string());
  for (uint64_t number = 1; number <= 1000; ++number) {
    log.end(log.begin("call", number, {.operation = Operation::all_reduce, .type = DataType::f32, .count = 5}));
  }
  log.begin("message", 3, {.operation = Operation::receive, .type = DataType::u8, .peer = 1, .count = 9});
  log.failed({Failure::Kind::invalid_argument, "the caller's own"});
  EXPECT_THROW(merge_flight_records(folder_), InvalidArgument);  // that is not worth a record
  log.failed({Failure::Kind::deadline_exceeded, "rank 7: waited"});
  const std::string picture = merge_flight_records(folder_);
  EXPECT_THAT(picture, HasSubstr("rank 7  in message 3 receive of 9 u8 from rank 1"));
  EXPECT_THAT(picture, HasSubstr("ended last: call 1000 all_reduce"));
  EXPECT_THAT(picture, HasSubstr("rank 7 failed with: rank 7: waited"));
  remove_flight_records(folder_);
  EXPECT_THROW(merge_flight_records(folder_), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::comm
