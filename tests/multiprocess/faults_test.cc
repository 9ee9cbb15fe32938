// Ranks that are killed, stopped or go away: the others end in time, with an error that names them, and nothing is
// left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <thread>

#include "job.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::multiprocess {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Sanitizers and a busy machine slow the ends of processes down, not their beginnings.
constexpr double kSlack_s = 2;

comm::Buffer f32(std::vector<float>& values) {
  return {.data = values.data(), .count = static_cast<int64_t>(values.size())};
}

void announce_all(comm::ProcessGroup& world) {
  announce_process(world.rank());
  world.barrier();
  if (world.rank() == 0) std::cout << "all are here" << std::endl;
}

// Of a process that nobody has reaped before us: it has been killed, but takes a moment to end.
bool ends_soon(pid_t process) {
  const double until_s = now_s() + kSlack_s;
  while (process_runs(process) && now_s() < until_s) std::this_thread::sleep_for(milliseconds(5));
  return !process_runs(process);
}

// A loop of all_reduces of all the ways: inline, staged and in registered memory.
RANK_PROGRAM(reduces_forever) {
  announce_all(world);
  std::vector<float> small(10), large(100'000);
  const comm::Registered registered = world.allocate(400'000);
  while (true) {
    world.all_reduce(f32(small), comm::Reduction::sum, {.tag = "small"});
    world.all_reduce(f32(large), comm::Reduction::max);
    world.all_reduce({.data = registered.data(), .count = 100'000}, comm::Reduction::sum);
  }
}

// The same of exchanges, and of messages larger than what is in flight at once.
RANK_PROGRAM(exchanges_forever) {
  announce_all(world);
  const int ranks = world.size(), right = (world.rank() + 1) % ranks, left = (world.rank() + ranks - 1) % ranks;
  std::vector<float> in(300'000), out(300'000);
  const std::vector<int64_t> counts{0, 100'000, 50'000};
  const std::vector<int64_t> received(3, counts[static_cast<size_t>(world.rank())]);
  const int64_t total = 3 * received[0];
  while (true) {
    world.all_to_all(f32(in), f32(out));
    world.all_to_all_uneven({.data = in.data(), .count = 150'000}, counts, {.data = out.data(), .count = total},
                            received);
    world.batch(std::vector<comm::Message>{{comm::Operation::receive, f32(out), left},
                                           {comm::Operation::send, f32(in), right}});
  }
}

// Rank 0 runs ahead.
RANK_PROGRAM(broadcasts_forever) {
  announce_all(world);
  std::vector<float> values(10);
  while (true) world.broadcast(f32(values), 0);
}

RANK_PROGRAM(idles) {
  announce_all(world);
  while (true) std::this_thread::sleep_for(milliseconds(100));
}

// Nobody waits for the Work.
RANK_PROGRAM(computes_beside_asynchronous_calls) {
  announce_all(world);
  std::vector<float> values(1000);
  if (world.rank() != 1) world.all_reduce_async(f32(values), comm::Reduction::sum);
  while (true) {
    std::this_thread::sleep_for(milliseconds(1));
    world.check();
  }
}

// Rank 1 waits to be killed before the group is first used.
RANK_PROGRAM(uses_subgroup) {
  const auto group = world.split(std::vector{0, 1, 2}, "dp");
  announce_all(world);
  if (world.rank() == 1) {
    while (true) std::this_thread::sleep_for(milliseconds(100));
  }
  std::vector<float> values(10);
  group->all_reduce(f32(values), comm::Reduction::sum, {.tag = "first use"});
}

RANK_PROGRAM(waits_for_a_message) {
  announce_all(world);
  std::vector<float> values(10);
  if (world.rank() == 0) world.receive(f32(values), 1);
  while (true) {
    std::this_thread::sleep_for(milliseconds(5));
    world.check();
  }
}

class Killed : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(While, Killed,
                         testing::Values("reduces_forever", "exchanges_forever", "broadcasts_forever", "idles",
                                         "computes_beside_asynchronous_calls", "uses_subgroup", "waits_for_a_message"));

TEST_P(Killed, RankEndsTheOthersWithinASecond) {
  Job job({.program = GetParam(), .ranks = 3});
  const std::vector<pid_t> ranks{job.process_of_rank(0), job.process_of_rank(1), job.process_of_rank(2)};
  ASSERT_TRUE(job.wait_for_output("all are here"));
  std::this_thread::sleep_for(milliseconds(100));
  const double start_s = now_s();
  kill(ranks[1], SIGKILL);
  const JobResult result = job.finish();
  EXPECT_LT(now_s() - start_s, 1 + kSlack_s);
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 1 was lost (killed by signal 9"));
  if (std::string(GetParam()) != "idles") {  // whoever makes a call, or asks, has an error of its own
    for (const char* const rank : {"[0] PeerLost: rank 0", "[2] PeerLost: rank 2"}) {
      EXPECT_THAT(result.output, HasSubstr(rank));
    }
  }
  for (const pid_t rank : ranks) EXPECT_FALSE(process_runs(rank));
}

class Stopped : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(While, Stopped, testing::Values("reduces_forever", "broadcasts_forever", "uses_subgroup"));

TEST_P(Stopped, RankEndsTheOthersAtTheDeadline) {
  constexpr double kDeadline_s = 1;
  Job job({.program = GetParam(), .ranks = 3, .deadline_s = kDeadline_s});
  const std::vector<pid_t> ranks{job.process_of_rank(0), job.process_of_rank(1), job.process_of_rank(2)};
  ASSERT_TRUE(job.wait_for_output("all are here"));
  const double start_s = now_s();
  kill(ranks[1], SIGSTOP);
  const JobResult result = job.finish();
  EXPECT_LT(now_s() - start_s, kDeadline_s + 1 + kSlack_s);
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("DeadlineExceeded"), HasSubstr("for rank 1"),
                    HasSubstr(GetParam() == std::string("broadcasts_forever") ? "broadcast" : "all_reduce")));
  for (const pid_t rank : ranks) EXPECT_FALSE(process_runs(rank));
}

TEST(Launcher, KilledTakesItsRanksAlong) {
  for (const char* const program : {"reduces_forever", "idles"}) {
    Job job({.program = program, .ranks = 3});
    const std::vector<pid_t> ranks{job.process_of_rank(0), job.process_of_rank(1), job.process_of_rank(2)};
    ASSERT_TRUE(job.wait_for_output("all are here"));
    kill(ranks[2], SIGSTOP);
    kill(job.launcher(), SIGKILL);
    EXPECT_EQ(job.finish().exit_code, 128 + SIGKILL);
    for (const pid_t rank : ranks) EXPECT_TRUE(ends_soon(rank)) << program;
  }
}

// -- errors that ranks make -----------------------------------------------------------------------------------------

// Rank 0 differs from the others in `arguments[0]`.
RANK_PROGRAM(disagrees) {
  const bool differs = world.rank() == 0;
  std::vector<float> values(12), others(12);
  const comm::Buffer four{.data = values.data(), .count = 4}, whole = f32(others);
  const std::vector<int64_t> counts = differs ? std::vector<int64_t>{1, 5, 6} : std::vector<int64_t>{4, 4, 4};
  const comm::Buffer some{.data = values.data(), .count = differs ? 4 : 6};
  if (arguments[0] == "count") world.all_reduce(some, comm::Reduction::sum);
  if (arguments[0] == "root") world.gather(four, whole, differs ? 1 : 0);
  if (arguments[0] == "operation") differs ? world.scatter(whole, four, 0) : world.broadcast(four, 0);
  if (arguments[0] == "reduction") {
    world.reduce(four, four, 0, differs ? comm::Reduction::min : comm::Reduction::max);
  }
  if (arguments[0] == "counts") world.all_to_all_uneven(f32(values), counts, whole, std::vector<int64_t>{4, 4, 4});
}

struct DisagreementCase {
  const char *about, *rank_0, *others;
};

class Disagreement : public testing::TestWithParam<DisagreementCase> {};
INSTANTIATE_TEST_SUITE_P(
    About, Disagreement,
    testing::Values(DisagreementCase{"count", "all_reduce(sum) of 4 f32", "all_reduce(sum) of 6 f32"},
                    DisagreementCase{"root", "gather of 4 f32 to rank 1", "gather of 4 f32 to rank 0"},
                    DisagreementCase{"operation", "scatter of 4 f32 from rank 0", "broadcast of 4 f32 from rank 0"},
                    DisagreementCase{"reduction", "reduce(min) of 4 f32", "reduce(max) of 4 f32"},
                    DisagreementCase{"counts", "sending 1, 5, 6", "sending 4, 4, 4"}),
    [](const auto& info) { return std::string(info.param.about); });

TEST_P(Disagreement, IsNamedOnEveryRank) {
  const JobResult result = run_job({.program = "disagrees", .arguments = {GetParam().about}, .ranks = 3});
  EXPECT_EQ(result.exit_code, 3);
  for (const char* const rank :
       {"[0] ProtocolMismatch: rank 0", "[1] ProtocolMismatch: rank 1", "[2] ProtocolMismatch: rank 2"}) {
    EXPECT_THAT(result.output, HasSubstr(rank));
  }
  EXPECT_THAT(result.output, AllOf(HasSubstr(GetParam().rank_0), HasSubstr(GetParam().others)));
}

RANK_PROGRAM(swaps_groups) {
  const auto a = world.split(std::vector{0, 1}, "a");
  const auto b = world.split(std::vector{0, 1}, "b");
  std::vector<float> values(4);
  (world.rank() == 0 ? *a : *b).all_reduce(f32(values), comm::Reduction::sum);
}

TEST(RankErrors, SwappedGroupsNameBothCalls) {
  const JobResult result = run_job({.program = "swaps_groups", .deadline_s = 0.3});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("DeadlineExceeded"), HasSubstr("on group 'a'"), HasSubstr("on group 'b'")));
}

// Rank 1 goes early: by returning, by exit(0), or by a status of its own.
RANK_PROGRAM(leaves_early) {
  world.barrier();
  if (world.rank() == 1) {
    if (arguments[0] == "return") return;
    std::exit(std::stoi(arguments[0]));
  }
  std::vector<float> values(4);
  world.all_reduce(f32(values), comm::Reduction::sum);
}

TEST(RankErrors, RankThatLeavesEarlyIsMissed) {
  for (const char* const how : {"return", "0", "7"}) {
    const JobResult result = run_job({.program = "leaves_early", .arguments = {how}, .ranks = 3});
    EXPECT_EQ(result.exit_code, std::string(how) == "7" ? 7 : 3) << result.output;
    EXPECT_THAT(result.output, AllOf(HasSubstr("[0] PeerLost: rank 0: rank 1 was lost"),
                                     HasSubstr("[2] PeerLost: rank 2: rank 1 was lost")));
  }
}

TEST(RankErrors, ProgramThatDoesNotExist) {
  const JobResult result = run_job({.program = "no_world", .arguments = {"0"}, .command = "./no-such-program"});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.output, HasSubstr("cannot start ./no-such-program: No such file"));
}

// -- signals to the launcher ----------------------------------------------------------------------------------------

RANK_PROGRAM(ends_well_when_told) {
  static volatile std::sig_atomic_t told = 0;
  std::signal(SIGTERM, [](int) { told = 1; });
  announce_all(world);
  while (told == 0) std::this_thread::sleep_for(milliseconds(5));
  std::cout << "told" << std::endl;
}

TEST(Signals, ArePassedOn) {
  Job job({.program = "ends_well_when_told"});
  ASSERT_TRUE(job.wait_for_output("all are here"));
  kill(job.launcher(), SIGTERM);
  const JobResult result = job.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("[0] told"), HasSubstr("[1] told")));
}

TEST(Signals, EndRanksThatDoNotHandleThem) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Job job({.program = "idles"});
    const pid_t rank = job.process_of_rank(1);
    ASSERT_TRUE(job.wait_for_output("all are here"));
    kill(job.launcher(), signal);
    const JobResult result = job.finish();
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.output, Not(HasSubstr("was lost")));
    EXPECT_FALSE(process_runs(rank));
  }
}

// A rank's program may be a child of the process that was started; it is ended with it.
TEST(Signals, ReachWhatRanksHaveStarted) {
  Job job({.program = "sleep 1000 & echo process of rank 0 is $!; echo all are here; wait",
           .ranks = 1,
           .command = "sh -c"});
  const pid_t grandchild = job.process_of_rank(0);
  ASSERT_TRUE(job.wait_for_output("all are here"));
  kill(job.launcher(), SIGTERM);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(ends_soon(grandchild));
}

}  // namespace
}  // namespace lockstep::multiprocess
