// Every operation against its definition between processes, in memory that others reach and in memory that they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "job.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/host/layout.h"
#include "lockstep/comm/self_check.h"

namespace lockstep::multiprocess {
namespace {

using comm::DataType;
using comm::Exercise;
using comm::Operation;
using comm::Reduction;
using testing::HasSubstr;

constexpr DataType kTypes[] = {DataType::f32, DataType::f64, DataType::bf16, DataType::f16,
                               DataType::i32, DataType::i64, DataType::u8};
constexpr Operation kOperations[] = {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
                                     Operation::broadcast,  Operation::send,           Operation::barrier};

void check(comm::ProcessGroup& group, const Exercise& exercise, bool asynchronous) {
  const std::string wrong = comm::StartedExercise(group, exercise, asynchronous).finish();
  if (!wrong.empty()) throw InternalError(wrong);
}

Reduction any_reduction(DataType type, uint64_t choice) {
  const bool integer = type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
  constexpr Reduction kReductions[] = {Reduction::sum, Reduction::min, Reduction::max, Reduction::average};
  return kReductions[choice % (integer ? 3 : 4)];
}

RANK_PROGRAM(exercises_everything) {
  const int64_t p = world.size();
  uint64_t seed = 0;
  for (const int64_t count : {int64_t{0}, int64_t{1}, p - 1, p, p + 1, int64_t{1000}, int64_t{9000}}) {
    for (const Operation operation : kOperations) {
      for (const DataType type : kTypes) {
        for (int choice = 0; choice < 4; ++choice) {
          Exercise exercise{.operation = operation, .type = type, .count = count, .seed = ++seed};
          exercise.reduction = any_reduction(type, static_cast<uint64_t>(choice));
          exercise.root = static_cast<int>(seed % static_cast<uint64_t>(p));
          exercise.registered = seed % 2 == 0;
          exercise.in_place = seed % 3 == 0;
          check(world, exercise, seed % 5 == 0);
        }
      }
    }
  }
}

// Beyond one and beyond two staging blocks, also where only some ranks' memory can be reached.
RANK_PROGRAM(exercises_large) {
  for (const int64_t bytes : {comm::host::kStagingBlockBytes, 2 * comm::host::kStagingBlockBytes + 8}) {
    for (const Operation operation : kOperations) {
      for (const int registered_rank : {-1, 0, world.size()}) {  // none, one, all
        Exercise exercise{.operation = operation, .count = bytes / 4 + 1};
        exercise.registered = registered_rank == world.size() || registered_rank == world.rank();
        exercise.root = world.size() - 1;
        check(world, exercise, registered_rank == 0);
      }
    }
  }
}

class SharedMemory : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SharedMemory, testing::Range(1, 5));

TEST_P(SharedMemory, EveryOperationIsItsDefinition) {
  const JobResult result = run_job({.program = "exercises_everything", .ranks = GetParam()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST_P(SharedMemory, LargeMessagesAreStaged) {
  const JobResult result = run_job({.program = "exercises_large", .ranks = GetParam()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

// The same calls in the same order on every rank, each blocking or not as it likes.
RANK_PROGRAM(runs_random_programs) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 common(seed), own(seed * 31 + static_cast<uint64_t>(world.rank()));
    std::vector<int> all(static_cast<size_t>(world.size()));
    for (int r = 0; r < world.size(); ++r) all[static_cast<size_t>(r)] = r;
    const auto whole = world.split(all, "whole");
    const std::vector<int> half = world.rank() % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3};
    const auto part = world.split(half, "part");
    std::vector<std::unique_ptr<comm::StartedExercise>> started;
    for (int i = 0; i < 30; ++i) {
      comm::ProcessGroup& group = common() % 2 == 0 ? *whole : *part;
      Exercise exercise{.operation = kOperations[common() % std::size(kOperations)],
                        .type = kTypes[common() % std::size(kTypes)]};
      exercise.reduction = any_reduction(exercise.type, common());
      exercise.count = static_cast<int64_t>(common() % 8 == 0 ? common() % 100'000 : common() % 3000);
      exercise.root = static_cast<int>(common() % 2);
      exercise.seed = common();
      exercise.in_place = common() % 2 == 0;
      exercise.registered = own() % 3 == 0;
      started.push_back(std::make_unique<comm::StartedExercise>(group, exercise, own() % 2 == 0));
    }
    for (const auto& exercise : started) {
      const std::string wrong = exercise->finish();
      if (!wrong.empty()) throw InternalError(text("random program ", seed, ": ", wrong));
    }
  }
}

TEST(RandomPrograms, GiveTheirDefinitions) {
  const JobResult result = run_job({.program = "runs_random_programs", .ranks = 4, .deadline_s = 30});
  EXPECT_EQ(result.exit_code, 0) << result.output;
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
