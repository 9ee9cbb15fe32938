// Every operation over MPI against its definition; the exercises are those of shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mpirun.h"

namespace lockstep::multiprocess {
namespace {

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
