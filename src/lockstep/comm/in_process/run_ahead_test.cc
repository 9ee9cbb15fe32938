// Short broadcasts that repeat the one before: their root returns at once, and whatever goes wrong is still named on
// every rank, with the call in which it went wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "lockstep/comm/host/layout.h"
#include "lockstep/comm/in_process/failures.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/comm/self_check.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Kind = Failure::Kind;

void broadcast(ProcessGroup& group, int64_t& value, int root = 0) {
  group.broadcast({.data = &value, .count = 1, .type = DataType::i64}, root);
}

TEST(RunAhead, RootFinishesWhatNobodyElseHasCalled) {
  std::barrier root_is_through(3);
  run_ranks(3, {.deadline = milliseconds(20'000)}, [&](ProcessGroup& world) {
    int64_t value = world.rank() == 0 ? 7 : 0;
    broadcast(world, value);
    if (world.rank() != 0) root_is_through.arrive_and_wait();
    for (int64_t i = 0; i < host::kAheadCalls; ++i) {
      value = world.rank() == 0 ? i * i : -1;
      broadcast(world, value);
      ASSERT_EQ(value, i * i);
    }
    if (world.rank() == 0) root_is_through.arrive_and_wait();
  });
}

// One more than there are lines for.
TEST(RunAhead, RootWaitsWhereTheLinesAreFull) {
  std::atomic<bool> others_go_on = false;
  run_ranks(2, {.deadline = milliseconds(20'000)}, [&](ProcessGroup& world) {
    std::vector<char> bytes(host::kInlineBytes);
    const int64_t calls = 3 * host::kAheadLines;  // several for each line
    for (int64_t i = 0; i < calls; ++i) {
      if (world.rank() == 1 && i == 1) {
        std::this_thread::sleep_for(milliseconds(100));
        others_go_on = true;
      }
      if (world.rank() == 0) std::ranges::fill(bytes, static_cast<char>(i));
      world.broadcast({.data = bytes.data(), .count = host::kInlineBytes, .type = DataType::u8}, 0);
      ASSERT_EQ(bytes, std::vector<char>(bytes.size(), static_cast<char>(i)));
    }
    ASSERT_TRUE(others_go_on);  // the root cannot be through before
  });
}

TEST(RunAhead, RootMayLeaveBeforeItsDataIsTaken) {
  const auto failed = failures(2, milliseconds(20'000), [](ProcessGroup& world) {
    auto group = world.split(std::vector{0, 1}, "passing");
    for (int64_t i = 0; i < 50; ++i) {
      if (world.rank() == 1 && i == 1) world.barrier();  // the root has destroyed the group
      int64_t value = world.rank() == 0 ? i : -1;
      broadcast(*group, value);
      ASSERT_EQ(value, i);
    }
    if (world.rank() == 0) group.reset();
    if (world.rank() == 0) world.barrier();
  });
  for (const Failure& failure : failed) EXPECT_EQ(failure.kind, Kind::none) << failure.message;
}

// Groups that reuse one record: lines of the one before are not taken for this one's.
TEST(RunAhead, GroupsComeAndGo) {
  run_ranks(3, {.deadline = milliseconds(20'000)}, [](ProcessGroup& world) {
    for (int64_t round = 0; round < 200; ++round) {
      const auto group = world.split(std::vector{0, 1, 2}, "passing");
      const int root = static_cast<int>(round % 3);
      for (int64_t i = 0; i < 20; ++i) {
        int64_t value = world.rank() == root ? 1000 * round + i : i + 2;  // looks like the number of the call
        broadcast(*group, value, root);
        ASSERT_EQ(value, 1000 * round + i);
      }
    }
  });
}

// -- disagreement ---------------------------------------------------------------------------------------------------

struct Other {
  const char* name;
  RankBody call;  // instead of the broadcast
  std::string words;
};

float few[4];
const Other kOthers[] = {
    {"root",
     [](ProcessGroup& g) {
       int64_t value = 0;
       broadcast(g, value, 1);
     },
     "broadcast of 1 i64 from rank 1"},
    {"count", [](ProcessGroup& g) { g.broadcast({.data = few, .count = 2, .type = DataType::i64}, 0); },
     "broadcast of 2 i64 from rank 0"},
    {"type", [](ProcessGroup& g) { g.broadcast({.data = few, .count = 1, .type = DataType::f32}, 0); },
     "broadcast of 1 f32 from rank 0"},
    {"tag", [](ProcessGroup& g) { g.broadcast({.data = few, .count = 1, .type = DataType::i64}, 0, {.tag = "seed"}); },
     "broadcast of 1 i64 from rank 0 [seed]"},
    {"operation", [](ProcessGroup& g) { g.barrier(); }, "barrier"},
    {"asynchronous", [](ProcessGroup& g) { g.barrier_async().wait(); }, "barrier"},
};

// `rank` makes the other call as call `number` of 300, all others the same broadcast. Then all meet.
void expect_named(const Other& other, int rank, int number) {
  SCOPED_TRACE(text(other.name, " of rank ", rank, " as call ", number));
  const auto failed = failures(3, milliseconds(20'000), [&](ProcessGroup& world) {
    for (int call = 1; call <= 300; ++call) {
      int64_t value = call;
      if (world.rank() == rank && call == number) {
        other.call(world);
      } else {
        broadcast(world, value);
      }
    }
    world.barrier();
  });
  for (size_t r = 0; r < failed.size(); ++r) {
    EXPECT_EQ(failed[r].kind, Kind::protocol_mismatch) << failed[r].message;
    for (const std::string& words :
         {text("rank ", r), text("ranks disagree on call ", number, " of group 'world'"),
          text("rank ", rank, " made ", other.words), std::string("made broadcast of 1 i64 from rank 0")}) {
      EXPECT_THAT(failed[r].message, HasSubstr(words));
    }
  }
}

TEST(RunAhead, DisagreementIsNamedOnEveryRank) {
  for (const Other& other : kOthers) {
    for (const int rank : {0, 1, 2}) {
      for (const int number : {2, 3, 4, 200, 300}) expect_named(other, rank, number);
    }
  }
}

// Rank 1 leaves out broadcasts; what it makes next is compared with them.
TEST(RunAhead, MissingBroadcastsAreNamed) {
  const auto failed = failures(3, milliseconds(20'000), [](ProcessGroup& world) {
    int64_t value = 0;
    for (int call = 1; call <= (world.rank() == 1 ? 10 : 12); ++call) broadcast(world, value);
    world.barrier();
  });
  for (const Failure& failure : failed) {
    EXPECT_EQ(failure.kind, Kind::protocol_mismatch) << failure.message;
    EXPECT_THAT(failure.message, HasSubstr("disagree on call 11 of group"));
    EXPECT_THAT(failure.message, HasSubstr("rank 1 made barrier; rank"));
    EXPECT_THAT(failure.message, HasSubstr("made broadcast of 1 i64 from rank 0"));
  }
}

// -- ranks that do not come -----------------------------------------------------------------------------------------

// Rank 1 stands still after call `last`: the others get what is there, and then their deadline.
TEST(RunAhead, DeadlineNamesWhoStandsStill) {
  constexpr int kLast = 5;
  std::barrier done(3);
  const auto failed = failures(3, milliseconds(200), [&](ProcessGroup& world) {
    int calls = 0;
    try {
      int64_t value = 0;
      while (world.rank() != 1 || calls < kLast) {
        broadcast(world, value);
        ++calls;
      }
    } catch (...) {
      EXPECT_GT(calls, host::kAheadCalls);
      EXPECT_LE(calls, kLast + host::kAheadCalls);
      done.arrive_and_drop();
      throw;
    }
    done.arrive_and_wait();
    world.barrier();
  });
  for (const Failure& failure : failed) {
    EXPECT_EQ(failure.kind, Kind::deadline_exceeded) << failure.message;
    EXPECT_THAT(failure.message, HasSubstr("for rank 1 in broadcast of 1 i64 from rank 0 (call "));
    EXPECT_THAT(failure.message, HasSubstr("rank 1 is in no call"));
  }
}

// The root stands still.
TEST(RunAhead, DeadlineNamesTheRoot) {
  std::barrier done(2);
  const auto failed = failures(2, milliseconds(200), [&](ProcessGroup& world) {
    end_together(done, [&] {
      int64_t value = 0;
      for (int call = 1; call <= (world.rank() == 0 ? 5 : 6); ++call) broadcast(world, value);
    });
    world.barrier();
  });
  for (const Failure& failure : failed) {
    EXPECT_EQ(failure.kind, Kind::deadline_exceeded) << failure.message;
    EXPECT_THAT(failure.message, HasSubstr("for rank 0 in broadcast of 1 i64 from rank 0 (call 6 on group 'world')"));
    EXPECT_THAT(failure.message, HasSubstr("rank 0 is in no call"));
  }
}

TEST(RunAhead, RankThatLeftEndsTheRootThatRunsAhead) {
  const auto failed = failures(2, milliseconds(20'000), [](ProcessGroup& world) {
    int64_t value = 0;
    for (int call = 1; call <= (world.rank() == 0 ? 10'000 : 5); ++call) broadcast(world, value);
  });
  EXPECT_EQ(failed[1].kind, Kind::none) << failed[1].message;
  EXPECT_EQ(failed[0].kind, Kind::peer_lost);
  EXPECT_THAT(failed[0].message, HasSubstr("rank 0: rank 1 was lost"));
}

// -- random programs ------------------------------------------------------------------------------------------------

void run_random_bursts(uint64_t first, uint64_t last) {
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    run_ranks(1 + static_cast<int>(seed % 4), {.deadline = std::chrono::seconds(30)},
              [seed](ProcessGroup& world) { ASSERT_EQ(run_broadcast_bursts(world, seed), ""); });
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(RunAhead, RandomBursts) {
  run_random_bursts(1, 150);
}

// Minutes: --gtest_also_run_disabled_tests --gtest_filter=*ThousandsOf*
TEST(RunAhead, DISABLED_ThousandsOfRandomBursts) {
  run_random_bursts(1, 5000);
}

}  // namespace
}  // namespace lockstep::comm
