// Every operation against its definition, on threads.
#include "lockstep/comm/in_process/in_process.h"

#include <gtest/gtest.h>

#include <random>

#include "lockstep/comm/host/layout.h"
#include "lockstep/comm/self_check.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::comm {
namespace {

constexpr DataType kTypes[] = {DataType::f32, DataType::f64, DataType::bf16, DataType::f16,
                               DataType::i32, DataType::i64, DataType::u8};
constexpr Operation kOperations[] = {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
                                     Operation::broadcast,  Operation::send,           Operation::barrier};

bool is_integer(DataType type) {
  return type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
}

std::vector<Reduction> reductions_of(Operation operation, DataType type) {
  if (operation != Operation::all_reduce && operation != Operation::reduce_scatter) return {Reduction::sum};
  if (is_integer(type)) return {Reduction::sum, Reduction::min, Reduction::max};
  return {Reduction::sum, Reduction::average, Reduction::min, Reduction::max};
}

void exercise_every_operation(ProcessGroup& group, int64_t count) {
  Exercise exercise{.count = count, .seed = static_cast<uint64_t>(count)};
  for (const Operation operation : kOperations) {
    for (const DataType type : kTypes) {
      for (const Reduction reduction : reductions_of(operation, type)) {
        exercise.operation = operation;
        exercise.type = type;
        exercise.reduction = reduction;
        exercise.root = static_cast<int>(++exercise.seed % static_cast<uint64_t>(group.size()));
        exercise.in_place = exercise.seed % 2 == 0;
        exercise.registered = exercise.seed % 3 == 0;
        ASSERT_EQ(StartedExercise(group, exercise, exercise.seed % 5 == 0).finish(), "");
      }
    }
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

// Sizes around every boundary at which the way of moving data changes.
TEST(InProcess, SizesAtBoundaries) {
  run_ranks(3, {}, [](ProcessGroup& world) {
    for (const int64_t bytes : {host::kInlineBytes, host::kFragmentBytes, host::kStagingBlockBytes}) {
      for (const int64_t count : {bytes, bytes + 1, 3 * bytes + 5}) {
        for (const Operation operation : kOperations) {
          const Exercise exercise{
              .operation = operation, .type = DataType::u8, .reduction = Reduction::max, .count = count};
          ASSERT_EQ(StartedExercise(world, exercise, false).finish(), "");
        }
      }
    }
  });
}

TEST(InProcess, ResultsThatAreStreamedPastTheCaches) {
  run_ranks(2, {}, [](ProcessGroup& world) {
    for (const Operation operation : {Operation::all_reduce, Operation::all_gather, Operation::broadcast}) {
      const Exercise exercise{.operation = operation, .type = DataType::f64, .count = (16 << 20) / 8 + 5};
      ASSERT_EQ(StartedExercise(world, exercise, false).finish(), "");
    }
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

// -- random programs ------------------------------------------------------------------------------------------------

// Every rank makes the same calls in the same order, each blocking or not as it likes, on groups that overlap.
void run_random_program(ProcessGroup& world, uint64_t seed) {
  std::mt19937_64 common(seed), own(seed * 31 + static_cast<uint64_t>(world.rank()));
  const auto pick = [&common](uint64_t n) { return common() % n; };
  const int p = world.size();
  std::vector<std::vector<int>> memberships(1);
  for (int r = 0; r < p; ++r) memberships[0].push_back(r);
  for (int g = 0; g < 3; ++g) {
    std::vector<int>& members = memberships.emplace_back();
    for (int r = 0; r < p; ++r) {
      if (pick(2) == 0 || (r == p - 1 && members.empty())) members.push_back(r);
    }
  }
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (const std::vector<int>& members : memberships) {
    const bool mine = std::find(members.begin(), members.end(), world.rank()) != members.end();
    groups.push_back(mine ? world.split(members, "random") : nullptr);
  }
  std::vector<std::unique_ptr<StartedExercise>> started;
  for (int i = 0; i < 30; ++i) {
    const size_t g = pick(groups.size());
    Exercise exercise{.operation = kOperations[pick(std::size(kOperations))], .type = kTypes[pick(std::size(kTypes))]};
    const std::vector<Reduction> reductions = reductions_of(exercise.operation, exercise.type);
    exercise.reduction = reductions[pick(reductions.size())];
    exercise.count = static_cast<int64_t>(pick(3) == 0 ? pick(6000) : pick(20));
    exercise.root = static_cast<int>(pick(memberships[g].size()));
    exercise.seed = common();
    exercise.in_place = pick(2) == 0;
    if (groups[g] == nullptr) continue;
    exercise.registered = own() % 4 == 0;
    started.push_back(std::make_unique<StartedExercise>(*groups[g], exercise, own() % 2 == 0));
    if (own() % 3 == 0) {
      ASSERT_EQ(started.back()->finish(), "");
      started.pop_back();
    }
  }
  for (const auto& exercise : started) ASSERT_EQ(exercise->finish(), "");
}

TEST(InProcess, RandomPrograms) {
  for (uint64_t seed = 1; seed <= 250; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    run_ranks(1 + static_cast<int>(seed % 4), {.deadline = std::chrono::seconds(30)},
              [seed](ProcessGroup& world) { run_random_program(world, seed); });
  }
}

}  // namespace
}  // namespace lockstep::comm
