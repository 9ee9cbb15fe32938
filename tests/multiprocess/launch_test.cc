// The launcher: exit codes, output, signals, and that nothing is left running.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "job.h"

namespace lockstep::multiprocess {
namespace {

using testing::HasSubstr;

RANK_PROGRAM(adds_up) {
  float value = static_cast<float>(world.rank() + 1);
  world.all_reduce({.data = &value, .count = 1}, comm::Reduction::sum);
  std::cout << "sum is " << value << std::endl;
}

TEST(Launch, RanksMeetAndTheirOutputIsPrefixed) {
  const JobResult result = run_job({.program = "adds_up", .ranks = 3});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const char* line : {"[0] sum is 6\n", "[1] sum is 6\n", "[2] sum is 6\n"})
    EXPECT_THAT(result.output, HasSubstr(line));
}

TEST(Launch, ProgramThatNeverJoins) {
  EXPECT_EQ(run_job({.program = "no_world", .arguments = {"0"}}).exit_code, 0);
  EXPECT_EQ(run_job({.program = "no_world", .arguments = {"5"}}).exit_code, 5);
}

}  // namespace
}  // namespace lockstep::multiprocess
