// Every operation over MPI against its definition; the exercises are those of shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/self_check.h"
#include "mpirun.h"

namespace lockstep::multiprocess {
namespace {

// What MPI defines as we do: its minimum of a NaN and a number may be the number, and the order of its additions is its
// own, which shows in all types of ours but f64 (whose exercises add exactly).
bool means_the_same(const comm::Exercise& exercise) {
  if (exercise.operation == comm::Operation::all_to_all && exercise.uneven) return false;  // refused
  if (!comm::reduces(exercise.operation)) return true;
  const bool adds = exercise.reduction == comm::Reduction::sum || exercise.reduction == comm::Reduction::average;
  switch (exercise.type) {
    case comm::DataType::f32:
    case comm::DataType::f16:
    case comm::DataType::bf16:
      return false;
    case comm::DataType::f64:
      return adds;
    case comm::DataType::u8:
      return !adds;  // refused
    default:
      return true;
  }
}

RANK_PROGRAM(exercises_native) {
  world.set_default_deadline(std::chrono::seconds(20));
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{70'000}}) {
    for (comm::Exercise exercise : comm::every_exercise(world.size(), count)) {
      if (!means_the_same(exercise)) continue;
      exercise.algorithm = collective::kNative;
      const std::string wrong = comm::StartedExercise(world, exercise, exercise.seed % 5 == 0).finish();
      if (!wrong.empty()) throw InternalError(wrong);
    }
  }
}

class Mpi : public testing::TestWithParam<int> {
 protected:
  void expect_success(const char* program, int ranks, const std::vector<std::string>& arguments = {}) {
    SKIP_WITHOUT_MPIRUN();
    const JobResult result = run_job({.program = program, .arguments = arguments, .launcher = mpirun(ranks)});
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Mpi, testing::Range(1, 5));

TEST_P(Mpi, EveryOperationIsItsDefinition) {
  expect_success("exercises_everything", GetParam());
}

TEST_P(Mpi, EveryAlgorithmGivesTheDefinition) {
  expect_success("exercises_algorithms", GetParam());
}

TEST_P(Mpi, ItsOwnCollectivesGiveTheDefinition) {
  expect_success("exercises_native", GetParam());
}

TEST_P(Mpi, LargeMessagesAreTheirDefinition) {
  expect_success("exercises_large", GetParam());
}

TEST_F(Mpi, RandomProgramsGiveTheirDefinitions) {
  expect_success("runs_random_programs", 4, {"60"});
}

TEST_F(Mpi, AllocatesMemory) {
  expect_success("allocates", 2);
}

}  // namespace
}  // namespace lockstep::multiprocess
