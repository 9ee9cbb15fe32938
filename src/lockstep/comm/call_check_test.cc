// Calls are compared without their data: what backends do whose memory is on devices.
#include "lockstep/comm/call_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/clock.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/in_process/in_process.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using Kind = Failure::Kind;
using Starts = std::function<std::vector<CallCheck::Pending>(CallCheck& check, int rank)>;

constexpr milliseconds kLong(20'000);

// How each rank's checks end.
std::vector<Failure> conclusions(int ranks, const Starts& starts) {
  std::vector<Failure> failures(static_cast<size_t>(ranks));
  run_ranks(ranks, {}, [&](ProcessGroup& host) {
    CallCheck check(host);
    try {
      for (const CallCheck::Pending& pending : starts(check, host.rank())) pending.conclude();
    } catch (...) {
      failures[static_cast<size_t>(host.rank())] = Failure::of(std::current_exception());
    }
    host.barrier();  // nobody leaves before the others have seen what it made
  });
  return failures;
}

CallInfo all_reduce(int64_t count, std::string tag = "") {
  CallInfo call{.operation = Operation::all_reduce, .type = DataType::f32, .count = count, .tag = std::move(tag)};
  call.detail_hash = hash_of(call.tag);
  return call;
}

CallInfo message(Operation operation, int peer, int64_t count) {
  return {.operation = operation, .type = DataType::f32, .peer = peer, .count = count};
}

CallInfo uneven_exchange(const std::vector<int64_t>& sent, const std::vector<int64_t>& received) {
  Call call{.operation = Operation::all_to_all, .input_counts = sent, .output_counts = received};
  return info_of(call);
}

TEST(CallCheck, IsSilentWhileRanksAgree) {
  const std::vector<Failure> failures = conclusions(3, [](CallCheck& check, int rank) {
    std::vector<CallCheck::Pending> pending;
    for (int64_t i = 1; i <= 20; ++i) pending.push_back(check.start(all_reduce(i, text("bucket ", i)), kLong));
    // Messages to and from one peer, in another order on each side.
    const int right = (rank + 1) % 3, left = (rank + 2) % 3;
    std::vector<CallInfo> messages{message(Operation::send, right, 4), message(Operation::receive, left, 4),
                                   message(Operation::send, left, 5), message(Operation::receive, right, 5)};
    if (rank == 1) std::ranges::reverse(messages);
    for (const CallInfo& each : messages) pending.push_back(check.start(each, kLong));
    std::vector<int64_t> sent, received;
    for (int r = 0; r < 3; ++r) {
      sent.push_back(10 * rank + r);
      received.push_back(10 * r + rank);
    }
    pending.push_back(check.start(uneven_exchange(sent, received), kLong));
    return pending;
  });
  for (const Failure& failure : failures) EXPECT_EQ(failure.kind, Kind::none) << failure.message;
}

TEST(CallCheck, NamesWhatEachRankMade) {
  const double start_s = now_s();
  const std::vector<Failure> failures = conclusions(3, [](CallCheck& check, int rank) {
    std::vector<CallCheck::Pending> pending{check.start(all_reduce(4), kLong)};
    pending.push_back(check.start(rank == 2 ? all_reduce(5, "bucket 1") : all_reduce(4, "bucket 1"), kLong));
    return pending;
  });
  EXPECT_LT(now_s() - start_s, 1.0);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(failures[rank].kind, Kind::protocol_mismatch);
    EXPECT_THAT(failures[rank].message,
                AllOf(HasSubstr(text("rank ", rank, ": ranks disagree on call 2 of group 'world'")),
                      HasSubstr("ranks 0, 1 made all_reduce(sum) of 4 f32 [bucket 1]"),
                      HasSubstr("rank 2 made all_reduce(sum) of 5 f32 [bucket 1]")));
  }
}

TEST(CallCheck, NamesBothEndsOfAMessage) {
  const std::vector<Failure> failures = conclusions(2, [](CallCheck& check, int rank) {
    const Operation operation = rank == 0 ? Operation::send : Operation::receive;
    return std::vector<CallCheck::Pending>{check.start(message(operation, 1 - rank, 4 + rank), kLong)};
  });
  for (const Failure& failure : failures) {
    EXPECT_EQ(failure.kind, Kind::protocol_mismatch);
    EXPECT_THAT(failure.message,
                AllOf(HasSubstr("message 1 of group 'world'"), HasSubstr("rank 0 made send of 4 f32 to rank 1"),
                      HasSubstr("rank 1 made receive of 5 f32 from rank 0")));
  }
}

TEST(CallCheck, ComparesWhatPairsExchange) {
  const std::vector<Failure> failures = conclusions(2, [](CallCheck& check, int rank) {
    const std::vector<int64_t> sent{1, 2}, received{1, rank == 0 ? 1 : 2};
    return std::vector<CallCheck::Pending>{check.start(uneven_exchange(sent, received), kLong)};
  });
  for (const Failure& failure : failures) {
    EXPECT_EQ(failure.kind, Kind::protocol_mismatch);
    EXPECT_THAT(failure.message, HasSubstr("receive from each what that one sends"));
  }
}

TEST(CallCheck, NamesTheCallThatARankDoesNotMake) {
  std::vector<Failure> failures(2);
  EXPECT_THROW(run_ranks(2, {},
                         [&](ProcessGroup& host) {
                           CallCheck check(host);
                           if (host.rank() == 0) {
                             try {
                               check.start(all_reduce(4, "bucket 3"), milliseconds(100)).conclude();
                             } catch (...) {
                               failures[0] = Failure::of(std::current_exception());
                             }
                           }
                           host.barrier();
                           check.start(all_reduce(4), kLong).conclude();  // a group that failed stays failed
                         }),
               DeadlineExceeded);
  EXPECT_EQ(failures[0].kind, Kind::deadline_exceeded);
  EXPECT_THAT(failures[0].message, AllOf(HasSubstr("in all_reduce(sum) of 4 f32 [bucket 3] (call 1 on group 'world')"),
                                         HasSubstr("for rank 1")));
}

TEST(CallCheck, NamesTheRankThatLeft) {
  std::string seen;
  run_ranks(2, {}, [&](ProcessGroup& host) {
    if (host.rank() == 1) return;
    CallCheck check(host);
    try {
      check.start(all_reduce(4), kLong).conclude();
    } catch (const PeerLost& error) {
      seen = error.what();
    }
  });
  EXPECT_THAT(seen, AllOf(HasSubstr("rank 1 was lost"), HasSubstr("in all_reduce(sum) of 4 f32 (call 1")));
}

}  // namespace
}  // namespace lockstep::comm
