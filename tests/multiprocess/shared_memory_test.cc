// Every operation against its definition between processes, in memory that others reach and in memory that they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "job.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/host/layout.h"
#include "lockstep/comm/self_check.h"

namespace lockstep::multiprocess {
namespace {

using comm::DataType;
using comm::Exercise;
using comm::Reduction;
using testing::HasSubstr;

void check(comm::ProcessGroup& group, const Exercise& exercise, bool asynchronous) {
  const std::string wrong = comm::StartedExercise(group, exercise, asynchronous).finish();
  if (!wrong.empty()) throw InternalError(wrong);
}

RANK_PROGRAM(exercises_everything) {
  const int64_t p = world.size();
  for (const int64_t count : {int64_t{0}, int64_t{1}, p - 1, p, p + 1, int64_t{1000}, int64_t{9000}}) {
    for (const Exercise& exercise : comm::every_exercise(world.size(), count)) {
      check(world, exercise, exercise.seed % 5 == 0);
    }
  }
}

// Beyond one and beyond two staging blocks, also where only some ranks' memory can be reached.
RANK_PROGRAM(exercises_large) {
  for (const int64_t bytes : {comm::host::kStagingBlockBytes, 2 * comm::host::kStagingBlockBytes + 8}) {
    for (Exercise exercise : comm::every_exercise(world.size(), bytes / 4 + 1)) {
      if (exercise.type != DataType::f32) continue;
      for (const int registered_rank : {-1, 0, world.size()}) {  // none, one, all
        exercise.registered = registered_rank == world.size() || registered_rank == world.rank();
        check(world, exercise, registered_rank == 0);
      }
    }
  }
}

RANK_PROGRAM(exercises_algorithms) {
  const int64_t p = world.size();
  const auto check_all = [&](int64_t count, std::span<const DataType> types) {
    const std::string wrong = comm::check_algorithms(world, count, types);
    if (!wrong.empty()) throw InternalError(wrong);
  };
  check_all(p + 1, {});
  constexpr DataType kOfTwoSizes[] = {DataType::f64, DataType::bf16};
  for (const int64_t count : {int64_t{0}, int64_t{1}, p - 1, p}) check_all(count, kOfTwoSizes);
  check_all(20'000, std::span(kOfTwoSizes).first(1));
}

class SharedMemory : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SharedMemory, testing::Range(1, 5));

TEST_P(SharedMemory, EveryOperationIsItsDefinition) {
  const JobResult result = run_job({.program = "exercises_everything", .ranks = GetParam()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST_P(SharedMemory, EveryAlgorithmGivesTheDefinition) {
  const JobResult result = run_job({.program = "exercises_algorithms", .ranks = GetParam()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST_P(SharedMemory, LargeMessagesAreStaged) {
  const JobResult result = run_job({.program = "exercises_large", .ranks = GetParam()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

RANK_PROGRAM(runs_random_programs) {
  const auto last = static_cast<uint64_t>(std::stoull(arguments[0]));
  for (uint64_t seed = 1; seed <= last; ++seed) {
    std::string wrong = comm::run_random_program(world, seed);
    if (wrong.empty()) wrong = comm::run_broadcast_bursts(world, seed);
    if (!wrong.empty()) throw InternalError(text("random program ", seed, ": ", wrong));
    if (seed % 100 == 0 && world.rank() == 0) std::cout << seed << " random programs" << std::endl;
  }
}

void expect_random_programs_right(const char* programs) {
  for (const int ranks : {2, 4}) {
    const JobResult result =
        run_job({.program = "runs_random_programs", .arguments = {programs}, .ranks = ranks, .deadline_s = 30});
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(RandomPrograms, GiveTheirDefinitions) {
  expect_random_programs_right("60");
}

// Minutes: --gtest_also_run_disabled_tests --gtest_filter=*TenThousand*
TEST(RandomPrograms, DISABLED_TenThousand) {
  expect_random_programs_right("10000");
}

// -- registered memory ----------------------------------------------------------------------------------------------

RANK_PROGRAM(allocates) {
  for (int round = 0; round < 3; ++round) {
    std::vector<comm::Registered> blocks;
    for (const int64_t bytes : {0, 1, 100, 5000, 1 << 20}) {
      blocks.push_back(world.allocate(bytes));
      auto* const memory = static_cast<char*>(blocks.back().data());
      LOCKSTEP_CHECK(reinterpret_cast<uintptr_t>(memory) % 64 == 0, "alignment");
      for (int64_t i = 0; i < bytes; ++i) LOCKSTEP_CHECK(memory[i] == 0, "not zeroed");
      for (int64_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(round + 1);
    }
  }
  try {
    world.allocate(int64_t{1} << 50);
  } catch (const InvalidArgument& error) {
    std::cout << error.what() << std::endl;
  }
}

TEST(Registered, MemoryIsZeroedAlignedAndRefusedWhenThereIsNone) {
  const JobResult result = run_job({.program = "allocates"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("is more than this host has available"));
}

// -- jobs at the same time ------------------------------------------------------------------------------------------

RANK_PROGRAM(sums_own_number) {
  for (int i = 0; i < 50; ++i) {
    int64_t value = std::stoll(arguments[0]);
    world.all_reduce({.data = &value, .count = 1, .type = DataType::i64}, Reduction::sum);
    if (value != world.size() * std::stoll(arguments[0])) throw InternalError(text("met another job: ", value));
  }
}

TEST(Jobs, StartedAtOnceNeverMeet) {
  for (int round = 0; round < 20; ++round) {
    Job first({.program = "sums_own_number", .arguments = {std::to_string(1000 + round)}});
    Job second({.program = "sums_own_number", .arguments = {std::to_string(2000 + round)}});
    const JobResult first_result = first.finish();
    const JobResult second_result = second.finish();
    EXPECT_EQ(first_result.exit_code, 0) << first_result.output;
    EXPECT_EQ(second_result.exit_code, 0) << second_result.output;
  }
}

}  // namespace
}  // namespace lockstep::multiprocess
