#include "lockstep/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// OPS-08: one line of information and one warning, four ranks; the warning comes from rank 2 alone.
std::string lines_of_four_ranks() {
  ::testing::internal::CaptureStderr();
  for (int rank = 0; rank < 4; ++rank) {
    std::thread([rank] {
      log::set_thread_rank(rank);
      log::info("the model has 5 parameters");
      if (rank == 2) log::warning("the disk is slow");
    }).join();
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, InformationOnceWarningsWithTheirRank) {
  log::configure({.world_size = 4});
  EXPECT_EQ(lines_of_four_ranks(), "the model has 5 parameters\nrank 2: warning: the disk is slow\n");
}

TEST(Log, AllRanksCanBeShown) {
  log::configure({.world_size = 4, .show_all_ranks = true});
  const std::string lines = lines_of_four_ranks();
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(lines, HasSubstr(text("rank ", rank, ": the model has 5 parameters\n")));
}

TEST(Log, EveryRankHasAFileOfItsOwn) {
  const std::string path = ::testing::TempDir() + "/rank3.log";
  log::configure({.rank = 3, .world_size = 4, .also_to_file = path});
  ::testing::internal::CaptureStderr();
  log::info("kept here, not shown");
  log::error("shown and kept");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "rank 3: error: shown and kept\n");
  std::ifstream file(path);
  const std::string kept((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(kept, HasSubstr("kept here, not shown"));
  EXPECT_THAT(kept, HasSubstr("shown and kept"));
  log::configure({});
}

TEST(Log, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THROW(log::configure({.also_to_file = "/proc/rank0.log"}), InvalidArgument);
  log::configure({});
}

TEST(Log, ARankIsNamedOnce) {
  log::configure({.rank = 1, .world_size = 2});
  ::testing::internal::CaptureStderr();
  log::error("rank 1: rank 0 was lost");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "rank 1: error: rank 0 was lost\n");
  log::configure({});
}

TEST(Log, OneRankNeedsNoNumber) {
  log::configure({});
  ::testing::internal::CaptureStderr();
  log::warning("alone");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: alone\n");
}

}  // namespace
}  // namespace lockstep
