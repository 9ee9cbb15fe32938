// What the survivors get when ranks of an MPI job disagree, do not come, stop or die: the typed error that names the
// rank and both calls, where OpenMPI alone hangs or gives wrong values. With --enable-recovery mpirun lets them live.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "mpirun.h"

namespace lockstep::multiprocess {
namespace {

using comm::Buffer;
using comm::DataType;
using comm::ProcessGroup;
using comm::Reduction;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr double kSlack_s = 2;  // of a busy machine
constexpr char kDeadline_ms[] = "1500";

float memory[100'000];
Buffer f32(int64_t count) {
  return {.data = memory, .count = count, .type = DataType::f32};
}

// -- disagreement ---------------------------------------------------------------------------------------------------

// Rank 1 does the one thing, the others the other, as their second call.
struct Disagreement {
  std::function<void(ProcessGroup&)> of_rank_1, of_others;
  std::vector<std::string> words;
};

const std::map<std::string, Disagreement>& disagreements() {
  static const std::map<std::string, Disagreement> all{
      {"count",
       {[](auto& g) { g.all_reduce(f32(6), Reduction::sum); },
        [](auto& g) { g.all_reduce(f32(4), Reduction::sum); },
        {"rank 1 made all_reduce(sum) of 6 f32", "all_reduce(sum) of 4 f32"}}},
      {"large count",
       {[](auto& g) { g.all_reduce(f32(60'000), Reduction::sum); },
        [](auto& g) { g.all_reduce(f32(90'000), Reduction::sum); },
        {"rank 1 made all_reduce(sum) of 60000 f32", "all_reduce(sum) of 90000 f32"}}},
      {"type",
       {[](auto& g) { g.all_reduce({.data = memory, .count = 4, .type = DataType::i32}, Reduction::sum); },
        [](auto& g) { g.all_reduce(f32(4), Reduction::sum); },
        {"rank 1 made all_reduce(sum) of 4 i32", "all_reduce(sum) of 4 f32"}}},
      {"root",
       {[](auto& g) { g.broadcast(f32(4), 1); },
        [](auto& g) { g.broadcast(f32(4), 0); },
        {"rank 1 made broadcast of 4 f32 from rank 1", "broadcast of 4 f32 from rank 0"}}},
      {"reduction",
       {[](auto& g) { g.all_reduce(f32(4), Reduction::min); },
        [](auto& g) { g.all_reduce(f32(4), Reduction::max); },
        {"rank 1 made all_reduce(min)", "all_reduce(max)"}}},
      {"operation",
       {[](auto& g) { g.broadcast(f32(4), 1); },
        [](auto& g) { g.all_reduce(f32(4), Reduction::sum); },
        {"rank 1 made broadcast of 4 f32", "all_reduce(sum) of 4 f32"}}},
      {"skipped call",
       {[](auto& g) { g.barrier(); },
        [](auto& g) {
          g.all_reduce(f32(4), Reduction::sum);
          g.barrier();
        },
        {"rank 1 made barrier", "all_reduce(sum) of 4 f32"}}},
      {"asynchronous",
       {[](auto& g) { g.all_reduce_async(f32(6), Reduction::sum).wait(); },
        [](auto& g) { g.all_reduce_async(f32(4), Reduction::sum).wait(); },
        {"rank 1 made all_reduce(sum) of 6 f32", "all_reduce(sum) of 4 f32"}}},
  };
  return all;
}

void set_deadline(ProcessGroup& world) {
  world.set_default_deadline(milliseconds(std::stoi(kDeadline_ms)));
}

RANK_PROGRAM(disagrees_over_mpi) {
  set_deadline(world);
  world.barrier();
  const Disagreement& disagreement = disagreements().at(arguments[0]);
  (world.rank() == 1 ? disagreement.of_rank_1 : disagreement.of_others)(world);
}

// Every rank's exit code is printed, because this mpirun returns 0.
JobOptions recovering(const std::string& program, const std::vector<std::string>& arguments = {}) {
  JobOptions options{
      .program = program, .arguments = arguments, .launcher = mpirun(kRanks, {"--enable-recovery", "--tag-output"})};
  options.launcher.insert(options.launcher.end(), {"sh", "-c", "\"$0\" \"$@\"; echo exit code $?"});
  return options;
}

JobOptions ending_the_others(const std::string& program) {
  return {.program = program, .launcher = mpirun(kRanks, {"--tag-output"})};
}

// The lines of one rank: mpirun begins them with "[1,RANK]<stderr>:".
std::string lines_of(const std::string& output, int rank) {
  std::istringstream lines(output);
  std::string own;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(text("[1,", rank, "]"))) own += line + "\n";
  }
  return own;
}

TEST(MpiFaults, DisagreementIsNamedOnEveryRank) {
  SKIP_WITHOUT_MPIRUN();
  for (const auto& [name, disagreement] : disagreements()) {
    SCOPED_TRACE(name);
    const JobResult result = run_job(recovering("disagrees_over_mpi", {name}));
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string own = lines_of(result.output, rank);
      EXPECT_THAT(own, AllOf(HasSubstr(text("ProtocolMismatch: rank ", rank)), HasSubstr("call 2 of group 'world'"),
                             HasSubstr("exit code 3")))
          << result.output;
      for (const std::string& word : disagreement.words) EXPECT_THAT(own, HasSubstr(word));
    }
  }
}

RANK_PROGRAM(disagrees_on_a_message) {
  set_deadline(world);
  if (world.rank() == 0) {
    world.send(f32(4), 1);
    world.receive(f32(1), 1);
  } else if (world.rank() == 1) {
    world.receive(f32(6), 0);
  } else {
    world.barrier();
  }
}

TEST(MpiFaults, DisagreementOnAMessageReachesEveryRank) {
  SKIP_WITHOUT_MPIRUN();
  const JobResult result = run_job(recovering("disagrees_on_a_message"));
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(lines_of(result.output, rank),
                AllOf(HasSubstr(text("ProtocolMismatch: rank ", rank)), HasSubstr("send of 4 f32 to rank 1"),
                      HasSubstr("receive of 6 f32 from rank 0")))
        << result.output;
  }
}

RANK_PROGRAM(swaps_groups_over_mpi) {
  set_deadline(world);
  const auto a = world.split(std::vector{0, 1, 2}, "a");
  const auto b = world.split(std::vector{0, 1, 2}, "b");
  world.barrier();
  (world.rank() == 0 ? *a : *b).all_reduce(f32(4), Reduction::sum);
  (world.rank() == 0 ? *b : *a).all_reduce(f32(4), Reduction::sum);
}

TEST(MpiFaults, SwappedGroupsNameBothCalls) {
  SKIP_WITHOUT_MPIRUN();
  const JobResult result = run_job(recovering("swaps_groups_over_mpi"));
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(lines_of(result.output, rank),
                AllOf(HasSubstr("on group 'a'"), HasSubstr("on group 'b'"), HasSubstr("exit code 3")))
        << result.output;
  }
  EXPECT_THAT(result.output, HasSubstr("DeadlineExceeded"));
}

// -- ranks that go --------------------------------------------------------------------------------------------------

RANK_PROGRAM(leaves_early_over_mpi) {
  set_deadline(world);
  world.barrier();
  if (world.rank() != 1) world.all_reduce(f32(4), Reduction::sum, {.tag = "without rank 1"});
}

TEST(MpiFaults, EarlyReturnIsMissed) {
  SKIP_WITHOUT_MPIRUN();
  const JobResult result = run_job(recovering("leaves_early_over_mpi"));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(lines_of(result.output, rank),
                AllOf(HasSubstr("PeerLost: "), HasSubstr("rank 1 was lost"), HasSubstr("without making this call"),
                      HasSubstr("all_reduce(sum) of 4 f32 [without rank 1] (call 2 on group 'world')"),
                      HasSubstr("exit code 3")))
        << result.output;
  }
  EXPECT_THAT(lines_of(result.output, 1), HasSubstr("exit code 0"));
}

void announce_all_over_mpi(ProcessGroup& world) {
  set_deadline(world);
  announce_process(world.rank());
  world.barrier();
  std::cout << "all are here" << std::endl;
}

RANK_PROGRAM(reduces_forever_over_mpi) {
  announce_all_over_mpi(world);
  while (true) {
    world.all_reduce(f32(10), Reduction::sum, {.tag = "small"});
    world.all_reduce(f32(100'000), Reduction::max);
  }
}

RANK_PROGRAM(waits_for_a_message_over_mpi) {
  announce_all_over_mpi(world);
  if (world.rank() == 0) world.receive(f32(10), 1);
  while (true) {
    std::this_thread::sleep_for(milliseconds(5));
    world.check();
  }
}

RANK_PROGRAM(idles_over_mpi) {
  announce_all_over_mpi(world);
  while (true) std::this_thread::sleep_for(milliseconds(100));
}

TEST(MpiFaults, KilledRankIsNamedWithinASecond) {
  SKIP_WITHOUT_MPIRUN();
  for (const char* const program : {"reduces_forever_over_mpi", "waits_for_a_message_over_mpi"}) {
    for (const bool recovery : {true, false}) {
      SCOPED_TRACE(text(program, recovery ? " with recovery" : ""));
      Job job(recovery ? recovering(program) : ending_the_others(program));
      const pid_t victim = job.process_of_rank(1);
      for (const int rank : {0, 2}) ASSERT_GT(job.process_of_rank(rank), 0);
      std::this_thread::sleep_for(milliseconds(300));
      const double start_s = now_s();
      kill(victim, SIGKILL);
      ASSERT_TRUE(job.wait_for_output("PeerLost: rank 0: rank 1 was lost")) << job.output();
      ASSERT_TRUE(job.wait_for_output("PeerLost: rank 2: rank 1 was lost")) << job.output();
      EXPECT_LT(now_s() - start_s, 1 + kSlack_s);
      const JobResult result = job.finish();
      EXPECT_TRUE(recovery || result.exit_code != 0);
    }
  }
}

// Without --enable-recovery mpirun ends the survivors, and then may not read what they write; a file does.
TEST(MpiFaults, RankOutsideOfACallSaysWhyItEnds) {
  SKIP_WITHOUT_MPIRUN();
  char folder[] = "/tmp/lockstep-mpi-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  JobOptions options = ending_the_others("idles_over_mpi");
  const std::string to_file = text("exec \"$0\" \"$@\" 2> ", folder, "/$OMPI_COMM_WORLD_RANK");
  options.launcher.insert(options.launcher.end(), {"sh", "-c", to_file});
  Job job(options);
  const pid_t victim = job.process_of_rank(1);
  for (const int rank : {0, 2}) ASSERT_GT(job.process_of_rank(rank), 0);
  std::this_thread::sleep_for(milliseconds(300));
  kill(victim, SIGKILL);
  EXPECT_NE(job.finish().exit_code, 0);
  for (const int rank : {0, 2}) {
    std::stringstream own;
    own << std::ifstream(text(folder, "/", rank)).rdbuf();
    EXPECT_THAT(own.str(),
                AllOf(HasSubstr(text("rank ", rank, ": error: told to end by SIGTERM; processes that have ended:")),
                      HasSubstr("rank 1")));
  }
  std::filesystem::remove_all(folder);
}

TEST(MpiFaults, StoppedRankIsNamedAtTheDeadline) {
  SKIP_WITHOUT_MPIRUN();
  Job job(recovering("reduces_forever_over_mpi"));
  const pid_t victim = job.process_of_rank(1);
  for (const int rank : {0, 2}) ASSERT_GT(job.process_of_rank(rank), 0);
  std::this_thread::sleep_for(milliseconds(300));
  const double start_s = now_s();
  kill(victim, SIGSTOP);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(job.wait_for_output(text("rank ", rank, ": waited 1.5"))) << job.output();
  }
  EXPECT_LT(now_s() - start_s, 1.5 + 1 + kSlack_s);
  kill(victim, SIGKILL);
  const JobResult result = job.finish();
  for (const int rank : {0, 2}) {
    EXPECT_THAT(lines_of(result.output, rank), AllOf(HasSubstr("DeadlineExceeded: "), HasSubstr("in all_reduce"),
                                                     HasSubstr(text("rank 1 (process ", victim, ") is stopped")),
                                                     HasSubstr("bytes"), HasSubstr("exit code 3")))
        << result.output;
  }
}

}  // namespace
}  // namespace lockstep::multiprocess
