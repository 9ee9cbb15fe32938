// Every operation against its definition, on threads.
#include "lockstep/comm/in_process/in_process.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/comm/host/layout.h"
#include "lockstep/comm/self_check.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::comm {
namespace {

void exercise_every_operation(ProcessGroup& group, int64_t count) {
  for (const Exercise& exercise : every_exercise(group.size(), count)) {
    ASSERT_EQ(StartedExercise(group, exercise, exercise.seed % 5 == 0).finish(), "");
  }
}

class EveryOperation : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(InProcess, EveryOperation, testing::Range(1, 9));

TEST_P(EveryOperation, IsItsDefinition) {
  run_ranks(GetParam(), {}, [](ProcessGroup& world) {
    const int64_t p = world.size();
    for (const int64_t count : {int64_t{0}, int64_t{1}, p - 1, p, p + 1, int64_t{1000}, host::kInlineBytes / 2 + 1}) {
      exercise_every_operation(world, count);
    }
  });
}

TEST_P(EveryOperation, IsItsDefinitionByEveryAlgorithm) {
  run_ranks(GetParam(), {}, [](ProcessGroup& world) {
    const int64_t p = world.size();
    for (const int64_t count : {p + 1, int64_t{100}}) ASSERT_EQ(check_algorithms(world, count), "");
    constexpr DataType kOfTwoSizes[] = {DataType::f64, DataType::bf16};
    for (const int64_t count : {int64_t{0}, int64_t{1}, p - 1, p}) {
      ASSERT_EQ(check_algorithms(world, count, kOfTwoSizes), "");
    }
    ASSERT_EQ(check_algorithms(world, 3000, std::span(kOfTwoSizes).first(1)), "");
  });
}

// Sizes around every boundary at which the way of moving data changes.
TEST(InProcess, SizesAtBoundaries) {
  run_ranks(3, {}, [](ProcessGroup& world) {
    for (const int64_t bytes : {host::kInlineBytes, host::kFragmentBytes, host::kStagingBlockBytes}) {
      for (const int64_t count : {bytes, bytes + 1, 3 * bytes + 5}) {
        for (Exercise exercise : every_exercise(world.size(), count)) {
          if (exercise.type != DataType::u8) continue;
          ASSERT_EQ(StartedExercise(world, exercise, false).finish(), "");
        }
      }
    }
  });
}

TEST(InProcess, ResultsThatAreStreamedPastTheCaches) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    for (const Operation operation : {Operation::all_reduce, Operation::all_gather, Operation::broadcast,
                                      Operation::reduce, Operation::scatter, Operation::all_to_all}) {
      const Exercise exercise{.operation = operation, .type = DataType::f64, .count = (16 << 20) / 8 + 5};
      ASSERT_EQ(StartedExercise(world, exercise, false).finish(), "");
    }
  });
}

// Needs 7 GB: --gtest_also_run_disabled_tests --gtest_filter=*MoreElements*
TEST(InProcess, DISABLED_MoreElementsThanAnIntHolds) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    const std::vector<int64_t> counts{(int64_t{1} << 31) + 5, 3};
    const auto own = static_cast<size_t>(world.rank());
    std::vector<char> input(static_cast<size_t>(counts[own]), static_cast<char>(own + 1));
    std::vector<char> output(static_cast<size_t>(counts[0] + counts[1]));
    world.all_gather_uneven({.data = input.data(), .count = counts[own], .type = DataType::u8},
                            {.data = output.data(), .count = counts[0] + counts[1], .type = DataType::u8}, counts);
    for (const size_t place : {size_t{0}, output.size() / 2, output.size() - 4}) ASSERT_EQ(output[place], 1);
    for (size_t place = output.size() - 3; place < output.size(); ++place) ASSERT_EQ(output[place], 2);
  });
}

TEST(InProcess, SumOfBf16IsRoundedOnce) {
  run_ranks(3, {}, [](ProcessGroup& world) {
    // 256 + 1 + 1 = 258 is a bf16; 256 + 1 rounds to 256, and to 256 again.
    uint16_t value = world.rank() == 0 ? 0x4380 : 0x3f80;
    world.all_reduce({.data = &value, .count = 1, .type = DataType::bf16}, Reduction::sum);
    ASSERT_EQ(value, 0x4381);
  });
}

TEST(InProcess, BalancedTreeHoldsWhateverTheRulesChoose) {
  run_ranks(3, {}, [](ProcessGroup& world) {
    world.set_rules(collective::parse_rules("all_reduce one_host 1.. .. ring\nall_reduce one_host 1.. .. naive\n"));
    const auto sum = [&](CallOptions options) {
      uint16_t value = world.rank() == 1 ? 0x4380 : 0x3f80;  // as above; a ring adds rank 2 to rank 1 first
      world.all_reduce({.data = &value, .count = 1, .type = DataType::bf16}, Reduction::sum, options);
      return value;
    };
    ASSERT_EQ(sum({}), 0x4380);
    ASSERT_EQ(sum({.balanced_tree = true}), 0x4381);
    ASSERT_EQ(sum({.algorithm = "direct", .balanced_tree = true}), 0x4381);
    ASSERT_EQ(sum({.algorithm = collective::kNative, .balanced_tree = true}), 0x4381);
    ASSERT_THROW(sum({.algorithm = "ring", .balanced_tree = true}), InvalidArgument);
  });
}

TEST(InProcess, SingleRank) {
  const auto group = single_rank();
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->backend(), "in_process");
  for (const int64_t count : {0, 1, 100'000}) exercise_every_operation(*group, count);
}

TEST(InProcess, SplitsAreGroupsOfTheirOwn) {
  run_ranks(4, {}, [](ProcessGroup& world) {
    const std::vector<int> half = world.rank() < 2 ? std::vector{1, 0} : std::vector{3, 2};
    const auto pair = world.split(half, "pair");
    const auto again = world.split(half, "pair");
    ASSERT_EQ(pair->size(), 2);
    ASSERT_EQ(pair->world_rank(pair->rank()), world.rank());
    ASSERT_EQ(pair->rank(), 1 - world.rank() % 2);  // in the order given
    // Were the two the same group, these would be matched with one another.
    int32_t first = world.rank(), second = 100 * world.rank();
    const Buffer first_buffer{.data = &first, .count = 1, .type = DataType::i32};
    const Buffer second_buffer{.data = &second, .count = 1, .type = DataType::i32};
    const bool in_order = world.rank() % 2 == 0;
    const Work a =
        (in_order ? *pair : *again).all_reduce_async(in_order ? first_buffer : second_buffer, Reduction::sum);
    const Work b =
        (in_order ? *again : *pair).all_reduce_async(in_order ? second_buffer : first_buffer, Reduction::sum);
    a.wait();
    b.wait();
    ASSERT_EQ(first, world.rank() < 2 ? 1 : 5);
    ASSERT_EQ(second, world.rank() < 2 ? 100 : 500);
  });
}

TEST(InProcess, GroupsComeAndGo) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    for (int i = 0; i < 1000; ++i) {  // more than there is room for at once
      const auto group = world.split(std::vector{0, 1}, "passing");
      int32_t value = 1;
      group->all_reduce({.data = &value, .count = 1, .type = DataType::i32}, Reduction::sum);
      ASSERT_EQ(value, 2);
    }
  });
}

TEST(InProcess, CallsAreRecorded) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    trace::Recorder recorder(world.rank());
    world.set_recorder(&recorder);
    float value = 1;
    world.all_reduce({.data = &value, .count = 1}, Reduction::sum, {.tag = "bucket 3"});
    world.barrier_async().wait();
    world.set_recorder(nullptr);
    world.barrier();
    const std::vector<trace::Event> events = recorder.events();
    ASSERT_EQ(events.size(), 2);
    ASSERT_EQ(events[0].name(), "all_reduce bucket 3");
    ASSERT_EQ(events[0].bytes, 4);
    ASSERT_EQ(events[0].track, trace::Track::communication);
    ASSERT_EQ(events[1].name(), "barrier");
  });
}

// -- messages -------------------------------------------------------------------------------------------------------

class Messages : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, Messages, testing::Values(0, 1, host::kFragmentBytes, 10 * host::kFragmentBytes + 1));

Buffer bytes_of(std::vector<char>& bytes) {
  return {.data = bytes.data(), .count = static_cast<int64_t>(bytes.size()), .type = DataType::u8};
}

TEST_P(Messages, BothSendFirst) {
  for (const bool receive_first : {false, true}) {
    for (const bool wait_for_send_first : {false, true}) {
      run_ranks(2, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
        std::vector<char> out(static_cast<size_t>(GetParam()), static_cast<char>(world.rank() + 1)), in(out.size());
        Work sent, received;
        if (receive_first) received = world.receive_async(bytes_of(in), 1 - world.rank());
        sent = world.send_async(bytes_of(out), 1 - world.rank());
        if (!receive_first) received = world.receive_async(bytes_of(in), 1 - world.rank());
        (wait_for_send_first ? sent : received).wait();
        (wait_for_send_first ? received : sent).wait();
        ASSERT_EQ(in, std::vector<char>(in.size(), static_cast<char>(2 - world.rank())));
      });
    }
  }
}

TEST_P(Messages, ManyOutstandingStayInOrder) {
  run_ranks(3, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
    constexpr int kMessages = 20;
    std::vector<std::vector<char>> messages;
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < world.size(); ++peer) {
        if (peer == world.rank()) continue;
        const int from_to = world.rank() * 3 + peer;
        messages.emplace_back(static_cast<size_t>(GetParam()), static_cast<char>(i * 9 + from_to));
        works.push_back(world.send_async(bytes_of(messages.back()), peer));
      }
    }
    for (int peer = world.size() - 1; peer >= 0; --peer) {  // not in the order they were sent
      if (peer == world.rank()) continue;
      for (int i = 0; i < kMessages; ++i) {
        std::vector<char> in(static_cast<size_t>(GetParam()));
        world.receive(bytes_of(in), peer);
        ASSERT_EQ(in, std::vector<char>(in.size(), static_cast<char>(i * 9 + peer * 3 + world.rank())));
      }
    }
    for (const Work& work : works) work.wait();
  });
}

// Blocking messages behind asynchronous ones of the same queue, and the other way round.
TEST_P(Messages, BlockingOnesStayInTheirQueue) {
  run_ranks(2, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
    constexpr int kMessages = 60;
    std::vector<std::vector<char>> messages;
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      messages.emplace_back(static_cast<size_t>(GetParam()), static_cast<char>(world.rank() == 0 ? i : -1));
      const Message message{world.rank() == 0 ? Operation::send : Operation::receive, bytes_of(messages.back()),
                            1 - world.rank()};
      if (i % 7 == 6) {
        world.batch({&message, 1});
      } else if (i % 3 == world.rank()) {
        works.push_back(world.batch_async({&message, 1}).front());
      } else if (world.rank() == 0) {
        world.send(message.buffer, 1);
      } else {
        world.receive(message.buffer, 0);
      }
    }
    for (const Work& work : works) work.wait();
    for (int i = 0; i < kMessages; ++i) {
      const std::vector<char>& got = messages[static_cast<size_t>(i)];
      ASSERT_EQ(got, std::vector<char>(got.size(), static_cast<char>(i)));
    }
  });
}

TEST_P(Messages, AreNotOrderedAgainstCollectives) {
  run_ranks(2, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
    std::vector<char> data(static_cast<size_t>(GetParam()), 7);
    if (world.rank() == 0) {
      const Work sent = world.send_async(bytes_of(data), 1);
      world.barrier();
      sent.wait();
      const Work barrier = world.barrier_async();
      world.receive(bytes_of(data), 1);
      barrier.wait();
    } else {
      world.barrier();
      world.receive(bytes_of(data), 0);
      const Work sent = world.send_async(bytes_of(data), 0);
      world.barrier();
      sent.wait();
    }
  });
}

TEST_P(Messages, OfABatchInAnyOrder) {
  run_ranks(3, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
    const int left = (world.rank() + 2) % 3, right = (world.rank() + 1) % 3;
    std::vector<char> out(static_cast<size_t>(GetParam()), static_cast<char>(world.rank()));
    std::vector<char> second(7, static_cast<char>(10 + world.rank()));
    std::vector<char> from_left(out.size()), second_from_left(7), from_right(out.size());
    std::vector<Message> messages{
        {Operation::send, bytes_of(out), right},           {Operation::receive, bytes_of(from_left), left},
        {Operation::send, bytes_of(second), right},        {Operation::receive, bytes_of(second_from_left), left},
        {Operation::receive, bytes_of(from_right), right}, {Operation::send, bytes_of(out), left}};
    // Only those between the same two ranks have an order.
    std::ranges::rotate(messages, messages.begin() + 4 * (world.rank() % 2));
    world.batch(messages);
    ASSERT_EQ(from_left, std::vector<char>(out.size(), static_cast<char>(left)));
    ASSERT_EQ(from_right, std::vector<char>(out.size(), static_cast<char>(right)));
    ASSERT_EQ(second_from_left, std::vector<char>(7, static_cast<char>(10 + left)));
    world.batch({});
  });
}

// -- random programs ------------------------------------------------------------------------------------------------

void run_random_programs(uint64_t first, uint64_t last) {
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    run_ranks(1 + static_cast<int>(seed % 5), {.deadline = std::chrono::seconds(30)},
              [seed](ProcessGroup& world) { ASSERT_EQ(run_random_program(world, seed), ""); });
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(InProcess, RandomPrograms) {
  run_random_programs(1, 250);
}

// Minutes: --gtest_also_run_disabled_tests --gtest_filter=*TenThousand*
TEST(InProcess, DISABLED_TenThousandRandomPrograms) {
  run_random_programs(1, 10'000);
}

}  // namespace
}  // namespace lockstep::comm
