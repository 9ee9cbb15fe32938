// What each rank gets when ranks disagree, do not come, or leave: a typed error on every rank, never a hang or wrong
// data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/comm/in_process/failures.h"
#include "lockstep/comm/in_process/in_process.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using Kind = Failure::Kind;

void expect_all(const std::vector<Failure>& failures, Kind kind, const std::vector<std::string>& words) {
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    EXPECT_EQ(failures[rank].kind, kind) << failures[rank].message;
    EXPECT_THAT(failures[rank].message, HasSubstr(text("rank ", rank)));
    EXPECT_EQ(failures[rank].message.find('\n'), std::string::npos);
    for (const std::string& word : words) EXPECT_THAT(failures[rank].message, HasSubstr(word));
  }
}

float values[64];
Buffer f32(int64_t count) {
  static thread_local float memory[64];
  return {.data = memory, .count = count, .type = DataType::f32};
}
// Other memory than f32's, for calls that are refused.
Buffer elsewhere(int64_t count) {
  return {.data = values, .count = count, .type = DataType::f32};
}
const std::vector<int64_t> k123{1, 2, 3}, k321{3, 2, 1}, k222{2, 2, 2};
Buffer as(DataType type, int64_t count) {
  Buffer buffer = f32(count);
  buffer.type = type;
  return buffer;
}

// -- disagreement ---------------------------------------------------------------------------------------------------

struct Disagreement {
  const char* name;
  RankBody rank_0, others;
  std::vector<std::string> words;
};

const Disagreement kDisagreements[] = {
    {"count",
     [](ProcessGroup& g) { g.all_reduce(f32(4), Reduction::sum); },
     [](ProcessGroup& g) { g.all_reduce(f32(6), Reduction::sum); },
     {"rank 0 made all_reduce(sum) of 4 f32", "all_reduce(sum) of 6 f32", "call 2 of group 'world'"}},
    {"type",
     [](ProcessGroup& g) { g.all_reduce(as(DataType::i32, 4), Reduction::sum); },
     [](ProcessGroup& g) { g.all_reduce(f32(4), Reduction::sum); },
     {"4 i32", "4 f32"}},
    {"reduction",
     [](ProcessGroup& g) { g.all_reduce(f32(4), Reduction::min); },
     [](ProcessGroup& g) { g.all_reduce(f32(4), Reduction::max); },
     {"all_reduce(min)", "all_reduce(max)"}},
    {"root",
     [](ProcessGroup& g) { g.broadcast(f32(4), 0); },
     [](ProcessGroup& g) { g.broadcast(f32(4), 1); },
     {"broadcast of 4 f32 from rank 0", "broadcast of 4 f32 from rank 1"}},
    {"operation",
     [](ProcessGroup& g) { g.all_reduce(f32(4), Reduction::sum); },
     [](ProcessGroup& g) { g.broadcast(f32(4), 1); },
     {"all_reduce(sum) of 4 f32", "broadcast of 4 f32"}},
    {"count of all_to_all",
     [](ProcessGroup& g) { g.all_to_all(f32(3), f32(3)); },
     [](ProcessGroup& g) { g.all_to_all(f32(6), f32(6)); },
     {"all_to_all of 3 f32", "all_to_all of 6 f32"}},
    {"count of gather",
     [](ProcessGroup& g) { g.gather(f32(4), f32(12), 0); },
     [](ProcessGroup& g) { g.gather(f32(5), f32(15), 0); },
     {"gather of 4 f32 to rank 0", "gather of 5 f32 to rank 0"}},
    {"type of scatter",
     [](ProcessGroup& g) { g.scatter(f32(12), f32(4), 0); },
     [](ProcessGroup& g) { g.scatter({}, as(DataType::i32, 4), 0); },
     {"scatter of 4 f32 from rank 0", "scatter of 4 i32 from rank 0"}},
    {"reduction of reduce",
     [](ProcessGroup& g) { g.reduce(f32(4), f32(4), 0, Reduction::sum); },
     [](ProcessGroup& g) { g.reduce(f32(4), {}, 0, Reduction::max); },
     {"reduce(sum) of 4 f32 to rank 0", "reduce(max) of 4 f32 to rank 0"}},
    {"root of reduce",
     [](ProcessGroup& g) { g.reduce(f32(4), f32(4), 0, Reduction::sum); },
     [](ProcessGroup& g) { g.reduce(f32(4), f32(4), 1, Reduction::sum); },
     {"reduce(sum) of 4 f32 to rank 0", "reduce(sum) of 4 f32 to rank 1"}},
    {"root of scatter",
     [](ProcessGroup& g) { g.scatter(f32(12), f32(4), 0); },
     [](ProcessGroup& g) { g.scatter(f32(12), f32(4), 1); },
     {"scatter of 4 f32 from rank 0", "scatter of 4 f32 from rank 1"}},
    {"root of gather",
     [](ProcessGroup& g) { g.gather(f32(4), f32(12), 0); },
     [](ProcessGroup& g) { g.gather(f32(4), f32(12), 2); },
     {"gather of 4 f32 to rank 0", "gather of 4 f32 to rank 2"}},
    {"operations of the same sizes",
     [](ProcessGroup& g) { g.gather(f32(4), f32(12), 0); },
     [](ProcessGroup& g) { g.reduce(f32(4), f32(4), 0, Reduction::sum); },
     {"gather of 4 f32 to rank 0", "reduce(sum) of 4 f32 to rank 0"}},
    {"counts of an uneven all_gather",
     [](ProcessGroup& g) { g.all_gather_uneven(f32(1), f32(6), k123); },
     [](ProcessGroup& g) { g.all_gather_uneven(f32(2), f32(6), k222); },
     {"all_gather of 6 f32 in parts of 1, 2, 3", "all_gather of 6 f32 in parts of 2, 2, 2"}},
    {"counts of an uneven reduce_scatter",
     [](ProcessGroup& g) { g.reduce_scatter_uneven(f32(6), f32(3), k321, Reduction::sum); },
     [](ProcessGroup& g) { g.reduce_scatter_uneven(f32(6), f32(g.rank() + 1), k123, Reduction::sum); },
     {"reduce_scatter(sum) of 6 f32 in parts of 3, 2, 1", "reduce_scatter(sum) of 6 f32 in parts of 1, 2, 3"}},
    {"uneven and even",
     [](ProcessGroup& g) { g.all_gather_uneven(f32(2), f32(6), k222); },
     [](ProcessGroup& g) { g.all_gather(f32(2), f32(6)); },
     {"all_gather of 6 f32 in parts of 2, 2, 2", "all_gather of 2 f32"}},
    {"what an uneven all_to_all sends and expects",
     [](ProcessGroup& g) { g.all_to_all_uneven(f32(6), k123, elsewhere(6), k222); },
     [](ProcessGroup& g) { g.all_to_all_uneven(f32(6), k222, elsewhere(6), k222); },
     {"all_to_all of 6 f32 sending 1, 2, 3 and receiving 2, 2, 2", "sending 2, 2, 2 and receiving 2, 2, 2"}},
    {"skipped call",
     [](ProcessGroup& g) { g.barrier(); },
     [](ProcessGroup& g) { g.all_reduce(f32(0), Reduction::sum); },
     {"made barrier", "all_reduce(sum) of 0 f32"}},
    {"tag",
     [](ProcessGroup& g) { g.all_reduce(f32(4), Reduction::sum, {.tag = "bucket 1"}); },
     [](ProcessGroup& g) { g.all_reduce(f32(4), Reduction::sum, {.tag = "bucket 2"}); },
     {"[bucket 1]", "[bucket 2]"}},
    {"asynchronous",
     [](ProcessGroup& g) { g.all_reduce_async(f32(4), Reduction::sum).wait(); },
     [](ProcessGroup& g) { g.all_reduce_async(f32(6), Reduction::sum).wait(); },
     {"4 f32", "6 f32"}},
};

TEST(Disagreement, IsNamedOnEveryRank) {
  for (const Disagreement& disagreement : kDisagreements) {
    SCOPED_TRACE(disagreement.name);
    const auto failed = failures(3, milliseconds(20'000), [&](ProcessGroup& world) {
      world.barrier();
      (world.rank() == 0 ? disagreement.rank_0 : disagreement.others)(world);
    });
    expect_all(failed, Kind::protocol_mismatch, disagreement.words);
  }
}

TEST(Disagreement, OnAMessageReachesBothSides) {
  const auto failed = failures(2, milliseconds(20'000), [](ProcessGroup& world) {
    if (world.rank() == 0) {
      world.send(f32(4), 1);
      world.receive(f32(1), 1);
    } else {
      world.receive(f32(6), 0);
    }
  });
  expect_all(failed, Kind::protocol_mismatch, {"send of 4 f32 to rank 1", "receive of 6 f32 from rank 0"});
}

TEST(Disagreement, InABatchReachesBothSides) {
  const auto failed = failures(2, milliseconds(20'000), [](ProcessGroup& world) {
    const int64_t received = world.rank() == 0 ? 4 : 6;
    world.batch(std::vector<Message>{{Operation::send, f32(4), 1 - world.rank()},
                                     {Operation::receive, f32(received), 1 - world.rank()}});
    world.barrier();
  });
  expect_all(failed, Kind::protocol_mismatch, {"send of 4 f32 to rank 1", "receive of 6 f32 from rank 0"});
}

// Call 2, too large for a slot, in memory that is staged or not: nobody reads or writes by counts that do not fit.
TEST(Disagreement, OnCountsOfLargeCalls) {
  for (const int64_t own : {int64_t{0}, int64_t{100'000}}) {
    const auto failed = failures(3, milliseconds(20'000), [&](ProcessGroup& world) {
      world.barrier();
      const std::vector<int64_t> counts{5'000, 5'000, world.rank() == 1 ? own : 5'000};
      std::vector<float> values(static_cast<size_t>(counts[0] + counts[1] + counts[2]));
      const Buffer buffer{.data = values.data(), .count = static_cast<int64_t>(values.size())};
      world.all_to_all_uneven(buffer, counts, buffer, counts);
    });
    expect_all(failed, Kind::protocol_mismatch, {"all_to_all of 15000 f32", "call 2 of group 'world'"});
  }
}

TEST(Disagreement, StaysWithTheGroup) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    const auto group = world.split(std::vector{0, 1}, "doomed");
    EXPECT_THROW(group->all_reduce(f32(world.rank() + 1), Reduction::sum), ProtocolMismatch);
    EXPECT_THROW(group->barrier(), ProtocolMismatch);
    EXPECT_THROW(group->barrier_async(), ProtocolMismatch);
    EXPECT_THROW(group->send_async(f32(1), 1 - world.rank()), ProtocolMismatch);
    EXPECT_THROW(group->check(), ProtocolMismatch);
    world.check();
    world.barrier();  // other groups go on
  });
}

TEST(Disagreement, ReachesARankThatWasNotInACall) {
  std::barrier others_have_failed(3);
  const auto failed = failures(3, milliseconds(20'000), [&](ProcessGroup& world) {
    if (world.rank() == 2) {
      others_have_failed.arrive_and_wait();
      world.check();
    }
    try {
      if (world.rank() == 0) world.send(f32(1), 1);
      if (world.rank() == 1) world.receive(f32(2), 0);
      world.barrier();
    } catch (...) {
      others_have_failed.arrive_and_wait();
      throw;
    }
  });
  expect_all(failed, Kind::protocol_mismatch, {"1 f32", "2 f32"});
}

// -- deadlines ------------------------------------------------------------------------------------------------------

TEST(Deadline, NamesWhoIsAwaitedAndWhereEveryoneIs) {
  std::barrier done(3);
  const auto failed = failures(3, milliseconds(20'000), [&](ProcessGroup& world) {
    const auto pair = world.split(std::vector{world.rank()}, "alone");
    end_together(done, [&] {
      if (world.rank() != 1)
        world.all_reduce(f32(4), Reduction::sum, {.deadline = milliseconds(200), .tag = "bucket 3"});
    });
    world.barrier();
  });
  expect_all(failed, Kind::deadline_exceeded,
             {"waited 0.2", "for rank 1", "all_reduce(sum) of 4 f32 [bucket 3] (call 1 on group 'world'), 16 bytes",
              "rank 1 is in no call", "longer deadline"});
}

TEST(Deadline, BlockingCallsOfTwoGroupsInSwappedOrder) {
  const auto failed = failures(2, milliseconds(300), [](ProcessGroup& world) {
    const auto a = world.split(std::vector{0, 1}, "a");
    const auto b = world.split(std::vector{0, 1}, "b");
    (world.rank() == 0 ? *a : *b).all_reduce(f32(4), Reduction::sum);
    (world.rank() == 0 ? *b : *a).all_reduce(f32(4), Reduction::sum);
  });
  // The rank whose deadline passes first may be gone before the other's does.
  EXPECT_TRUE(failed[0].kind == Kind::deadline_exceeded || failed[1].kind == Kind::deadline_exceeded);
  for (const Failure& failure : failed) {
    EXPECT_TRUE(failure.kind == Kind::deadline_exceeded || failure.kind == Kind::peer_lost) << failure.message;
    EXPECT_THAT(failure.message, AllOf(HasSubstr("call 1 on group 'a'"), HasSubstr("call 1 on group 'b'")));
    EXPECT_THAT(failure.message, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
}

TEST(Deadline, AsynchronousCallsOfTwoGroupsInSwappedOrderWork) {
  run_ranks(2, {.deadline = std::chrono::seconds(20)}, [](ProcessGroup& world) {
    const auto a = world.split(std::vector{0, 1}, "a");
    const auto b = world.split(std::vector{0, 1}, "b");
    const Work first = (world.rank() == 0 ? *a : *b).barrier_async();
    const Work second = (world.rank() == 0 ? *b : *a).barrier_async();
    first.wait();
    second.wait();
  });
}

TEST(Deadline, OfAMessage) {
  std::barrier done(2);
  const auto failed = failures(2, milliseconds(200), [&](ProcessGroup& world) {
    end_together(done, [&] {
      const Message both[] = {{Operation::send, f32(1), 1}, {Operation::receive, f32(4), 1}};  // the send is through
      if (world.rank() == 0) world.batch(both);
    });
    world.barrier();
  });
  expect_all(failed, Kind::deadline_exceeded, {"receive of 4 f32 from rank 1 (message 1 on group 'world')"});
}

TEST(Deadline, OfACallNobodyWaitsFor) {
  std::barrier done(2);
  const auto failed = failures(2, milliseconds(100), [&](ProcessGroup& world) {
    if (world.rank() == 0) {
      world.barrier_async();  // dropped
      EXPECT_NO_THROW(world.check());
      const double until_s = now_s() + 10;
      while (now_s() < until_s) {
        try {
          world.check();
        } catch (...) {
          done.arrive_and_drop();
          throw;
        }
        std::this_thread::sleep_for(milliseconds(5));
      }
    }
    done.arrive_and_wait();
    world.check();
  });
  expect_all(failed, Kind::deadline_exceeded, {"for rank 1 in barrier"});
}

// -- ranks that end -------------------------------------------------------------------------------------------------

TEST(Leaving, EarlyFailsWhoeverNeedsThatRank) {
  for (const bool asynchronous : {false, true}) {
    const auto failed = failures(3, milliseconds(20'000), [&](ProcessGroup& world) {
      world.barrier();
      if (world.rank() == 1) return;
      if (asynchronous) {
        world.all_reduce_async(f32(4), Reduction::sum).wait();
      } else {
        world.all_reduce(f32(4), Reduction::sum);
      }
    });
    for (const size_t rank : {size_t{0}, size_t{2}}) {
      EXPECT_EQ(failed[rank].kind, Kind::peer_lost);
      EXPECT_THAT(failed[rank].message, AllOf(HasSubstr(text("rank ", rank, ": rank 1 was lost")),
                                              HasSubstr("all_reduce(sum) of 4 f32"), HasSubstr("start the job again")));
    }
  }
}

TEST(Leaving, DoesNotHurtWhoHasWhatItNeeds) {
  const auto failed = failures(3, milliseconds(20'000), [](ProcessGroup& world) {
    if (world.rank() == 0) return world.send(f32(4), 1);
    if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(50));
    if (world.rank() == 1) world.receive(f32(4), 0);
    world.split(std::vector{1, 2}, "rest")->barrier();
    const int other = 3 - world.rank();
    world.send_async(f32(2), other);
    world.receive(f32(2), other);
  });
  for (const Failure& failure : failed) EXPECT_EQ(failure.kind, Kind::none) << failure.message;
}

TEST(Leaving, ByAnErrorFailsEveryGroupOfThatRank) {
  std::barrier about_to_fail(3);
  const auto failed = failures(3, milliseconds(20'000), [&](ProcessGroup& world) {
    const auto group = world.split(std::vector{0, 1, 2}, "dp");
    group->barrier();
    about_to_fail.arrive_and_wait();
    if (world.rank() == 1) throw InvalidArgument("rank 1: train.lr = -1: must be positive");
    const double until_s = now_s() + 10;
    while (now_s() < until_s) {  // computing: nobody waits for anything
      group->check();
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(failed[rank].kind, Kind::peer_lost);
    EXPECT_THAT(failed[rank].message, HasSubstr("rank 1 was lost (it ended with an error: rank 1: train.lr = -1"));
  }
}

TEST(Leaving, ErrorThatCameFirstIsTheOneThrown) {
  EXPECT_THROW(run_ranks(3, {},
                         [](ProcessGroup& world) {
                           world.barrier();
                           if (world.rank() == 2) throw InvalidArgument("the cause");
                           world.barrier();
                         }),
               InvalidArgument);
}

TEST(Leaving, ByDestroyingAGroup) {
  const auto failed = failures(2, milliseconds(20'000), [](ProcessGroup& world) {
    auto group = world.split(std::vector{0, 1}, "pair");
    group->barrier();
    if (world.rank() == 0) {
      group.reset();
      world.barrier();
      return;
    }
    try {
      group->all_reduce(f32(1), Reduction::sum);
    } catch (...) {
      world.barrier();
      throw;
    }
  });
  EXPECT_EQ(failed[0].kind, Kind::none) << failed[0].message;
  EXPECT_EQ(failed[1].kind, Kind::peer_lost);
  EXPECT_THAT(failed[1].message, HasSubstr("it has destroyed its group"));
}

TEST(Leaving, WithUnfinishedWorkDoesNotHang) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    Work barrier, received;
    if (world.rank() == 0) {
      const auto group = world.split(std::vector{0, 1}, "dropped");
      barrier = group->barrier_async();
      received = group->receive_async(f32(4), 1);
    }
    if (world.rank() == 0) {
      EXPECT_THROW(barrier.wait(), InvalidArgument);
      EXPECT_THROW(received.wait(), InvalidArgument);
    }
    world.barrier();
  });
}

// -- calls that no group could execute ------------------------------------------------------------------------------

TEST(InvalidCalls, AreRefusedBeforeAnythingHappens) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    EXPECT_THROW(world.all_reduce(as(DataType::i32, 4), Reduction::average), InvalidArgument);
    EXPECT_THROW(world.reduce_scatter(f32(5), f32(2), Reduction::sum), InvalidArgument);
    EXPECT_THROW(world.reduce_scatter(f32(4), as(DataType::i32, 2), Reduction::sum), InvalidArgument);
    EXPECT_THROW(world.all_gather(f32(2), f32(5)), InvalidArgument);
    EXPECT_THROW(world.broadcast(f32(1), 2), InvalidArgument);
    EXPECT_THROW(world.send(f32(1), 2), InvalidArgument);
    EXPECT_THROW(world.send(f32(1), world.rank()), InvalidArgument);
    EXPECT_THROW(world.all_reduce(f32(-1), Reduction::sum), InvalidArgument);
    EXPECT_THROW(world.all_reduce({.data = nullptr, .count = 1}, Reduction::sum), InvalidArgument);
    EXPECT_THROW(world.all_reduce({.data = values, .count = 1, .device = Device::cuda}, Reduction::sum), Unsupported);
    EXPECT_THROW(world.reduce(as(DataType::i32, 4), as(DataType::i32, 4), 0, Reduction::average), InvalidArgument);
    EXPECT_THROW(world.reduce(f32(4), f32(4), 2, Reduction::sum), InvalidArgument);
    EXPECT_THROW(world.gather(f32(4), f32(4), -1), InvalidArgument);
    EXPECT_THROW(world.reduce(f32(4), f32(3), world.rank(), Reduction::sum), InvalidArgument);
    EXPECT_THROW(world.scatter(f32(5), f32(2), world.rank()), InvalidArgument);
    EXPECT_THROW(world.gather(f32(2), f32(5), world.rank()), InvalidArgument);
    EXPECT_THROW(world.gather(f32(2), as(DataType::i32, 4), world.rank()), InvalidArgument);
    EXPECT_THROW(world.all_to_all(f32(3), f32(3)), InvalidArgument);
    EXPECT_THROW(world.all_to_all(f32(4), f32(2)), InvalidArgument);
    EXPECT_THROW(world.split(std::vector{0, 2}, "g"), InvalidArgument);
    EXPECT_THROW(world.split(std::vector{0, 1, 1}, "g"), InvalidArgument);
    EXPECT_THROW(world.split(std::vector{1 - world.rank()}, "g"), InvalidArgument);
    EXPECT_THROW(world.allocate(int64_t{1} << 60), InvalidArgument);
    EXPECT_THROW(world.allocate(-1), InvalidArgument);
    world.barrier();
  });
  EXPECT_THROW(InProcessWorld(0), InvalidArgument);
  EXPECT_THROW(InProcessWorld(1000), InvalidArgument);
}

TEST(InvalidCalls, WithCountsThatDoNotFit) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    const std::vector<int64_t> three{1, 1, 1}, negative{-1, 3}, short_of_4{1, 2}, beyond_4{1, 4},
        huge{int64_t{1} << 62, int64_t{1} << 62};
    const std::vector<int64_t> fits{2, 2}, other_fit{1, 3};
    for (const auto* const counts : {&three, &negative, &short_of_4, &beyond_4, &huge}) {
      EXPECT_THROW(world.all_gather_uneven(f32(2), f32(4), *counts), InvalidArgument);
      EXPECT_THROW(world.reduce_scatter_uneven(f32(4), f32(2), *counts, Reduction::sum), InvalidArgument);
      EXPECT_THROW(world.all_to_all_uneven(f32(4), *counts, elsewhere(4), fits), InvalidArgument);
      EXPECT_THROW(world.all_to_all_uneven(f32(4), fits, elsewhere(4), *counts), InvalidArgument);
    }
    EXPECT_THROW(world.all_gather_uneven(f32(3), f32(4), fits), InvalidArgument);  // this rank's part is 2
    EXPECT_THROW(world.reduce_scatter_uneven(f32(4), f32(3), fits, Reduction::sum), InvalidArgument);
    EXPECT_THROW(world.all_to_all_uneven(f32(4), other_fit, f32(4), fits), InvalidArgument);  // in place
    EXPECT_THROW(world.all_reduce({.data = values, .count = int64_t{1} << 61}, Reduction::sum), InvalidArgument);
    world.barrier();
  });
}

TEST(InvalidCalls, InABatchAreRefusedBeforeAnyIsSent) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    const int other = 1 - world.rank();
    for (const bool asynchronous : {false, true}) {
      for (const Message& wrong :
           {Message{Operation::send, f32(1), world.rank()}, Message{Operation::receive, f32(1), 2},
            Message{Operation::broadcast, f32(1), other}, Message{Operation::send, f32(-1), other}}) {
        const std::vector<Message> messages{{Operation::send, f32(1), other}, wrong};
        if (asynchronous) {
          EXPECT_THROW(world.batch_async(messages), InvalidArgument);
        } else {
          EXPECT_THROW(world.batch(messages), InvalidArgument);
        }
      }
    }
    // Had one of those sends been made, this would be matched with it.
    int32_t sent = world.rank(), received = -1;
    world.batch(
        std::vector<Message>{{Operation::send, {.data = &sent, .count = 1, .type = DataType::i32}, other},
                             {Operation::receive, {.data = &received, .count = 1, .type = DataType::i32}, other}});
    EXPECT_EQ(received, other);
  });
}

}  // namespace
}  // namespace lockstep::comm
