#include "lockstep/distributed/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/distributed/device.h"

namespace lockstep {
namespace {

void on_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(20)}, body);
}

at::Tensor of_rank(int rank, at::ScalarType type) {
  return torch::arange(6, type) + rank;
}

TEST(Collectives, EveryFunctionOnEveryTypeBlockingAndAsynchronous) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong}) {
    on_ranks(3, [&](ProcessGroup& world) {
      const int rank = world.rank();
      for (const bool asynchronous : {false, true}) {
        const auto finish = [&](auto&& blocking, auto&& async) { asynchronous ? async().wait() : blocking(); };
        at::Tensor sum = of_rank(rank, type);
        finish([&] { all_reduce(sum, world); }, [&] { return all_reduce_async(sum, world); });
        EXPECT_TRUE(at::equal(sum, torch::arange(6, type) * 3 + 3));

        at::Tensor maximum = of_rank(rank, type);
        finish([&] { all_reduce(maximum, world, Reduction::max); },
               [&] { return all_reduce_async(maximum, world, Reduction::max); });
        EXPECT_TRUE(at::equal(maximum, of_rank(2, type)));

        at::Tensor gathered = torch::zeros({3, 6}, type);
        finish([&] { all_gather_into_tensor(gathered, of_rank(rank, type), world); },
               [&] { return all_gather_into_tensor_async(gathered, of_rank(rank, type), world); });
        for (int r = 0; r < 3; ++r) EXPECT_TRUE(at::equal(gathered[r], of_rank(r, type)));

        at::Tensor slice = torch::zeros({2}, type);
        finish([&] { reduce_scatter_tensor(slice, of_rank(rank, type), world); },
               [&] { return reduce_scatter_tensor_async(slice, of_rank(rank, type), world); });
        EXPECT_TRUE(at::equal(slice, (torch::arange(6, type) * 3 + 3).narrow(0, 2 * rank, 2)));

        at::Tensor root = of_rank(rank, type);
        finish([&] { broadcast(root, 1, world); }, [&] { return broadcast_async(root, 1, world); });
        EXPECT_TRUE(at::equal(root, of_rank(1, type)));

        at::Tensor received = torch::zeros({6}, type);
        Work sent = isend(of_rank(rank, type), (rank + 1) % 3, world);
        finish([&] { recv(received, (rank + 2) % 3, world); }, [&] { return irecv(received, (rank + 2) % 3, world); });
        sent.wait();
        EXPECT_TRUE(at::equal(received, of_rank((rank + 2) % 3, type)));
        barrier(world);
      }
    });
  }
}

TEST(Collectives, FunctionsWithARootOnEveryType) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte}) {
    on_ranks(3, [&](ProcessGroup& world) {
      const int rank = world.rank();
      for (const bool asynchronous : {false, true}) {
        const auto finish = [&](auto&& blocking, auto&& async) { asynchronous ? async().wait() : blocking(); };
        at::Tensor sum = of_rank(rank, type);
        finish([&] { reduce(sum, 1, world); }, [&] { return reduce_async(sum, 1, world); });
        EXPECT_TRUE(at::equal(sum, rank == 1 ? torch::arange(6, type) * 3 + 3 : of_rank(rank, type)));

        at::Tensor slice = torch::zeros({2}, type);
        const at::Tensor whole = rank == 2 ? of_rank(2, type).view({3, 2}) : at::Tensor();
        finish([&] { scatter(slice, whole, 2, world); }, [&] { return scatter_async(slice, whole, 2, world); });
        EXPECT_TRUE(at::equal(slice, of_rank(2, type).narrow(0, 2 * rank, 2)));

        at::Tensor gathered = rank == 0 ? torch::zeros({3, 6}, type) : at::Tensor();
        finish([&] { gather(of_rank(rank, type), gathered, 0, world); },
               [&] { return gather_async(of_rank(rank, type), gathered, 0, world); });
        for (int r = 0; r < 3 && rank == 0; ++r) EXPECT_TRUE(at::equal(gathered[r], of_rank(r, type)));
      }
    });
  }
}

// Rank r sends r + to rows of two elements to rank `to`.
TEST(Collectives, AllToAllSingleEvenAndUneven) {
  on_ranks(3, [](ProcessGroup& world) {
    const int rank = world.rank();
    for (const bool asynchronous : {false, true}) {
      const auto exchange = [&](at::Tensor& output, const at::Tensor& input, const SplitSizes& sizes) {
        if (asynchronous) return all_to_all_single_async(output, input, world, sizes).wait();
        all_to_all_single(output, input, world, sizes);
      };
      at::Tensor even = torch::zeros({6});
      exchange(even, of_rank(10 * rank, at::kFloat), {});
      for (int r = 0; r < 3; ++r) {
        EXPECT_TRUE(at::equal(even.narrow(0, 2 * r, 2), of_rank(10 * r, at::kFloat).narrow(0, 2 * rank, 2)));
      }
      const std::vector<int64_t> rows{rank, rank + 1, rank + 2};
      std::vector<at::Tensor> expected;
      for (int r = 0; r < 3; ++r) expected.push_back(torch::full({r + rank, 2}, 10 * r + rank, at::kFloat));
      std::vector<at::Tensor> sent;
      for (int r = 0; r < 3; ++r) sent.push_back(torch::full({r + rank, 2}, 10 * rank + r, at::kFloat));
      at::Tensor output = torch::zeros({3 * rank + 3, 2});
      exchange(output, torch::cat(sent), {.output = rows, .input = rows});
      EXPECT_TRUE(at::equal(output, torch::cat(expected)));
    }
  });
}

TEST(Collectives, ListsOfUnevenTensors) {
  on_ranks(3, [](ProcessGroup& world) {
    const int rank = world.rank();
    const at::Tensor own = torch::full({rank, 2}, rank + 1, at::kFloat);
    for (const bool asynchronous : {false, true}) {
      for (const bool one_storage : {false, true}) {
        std::vector<at::Tensor> outputs{torch::zeros({0, 2}), torch::zeros({1, 2}), torch::zeros({2, 2})};
        if (one_storage) outputs = torch::zeros({3, 2}).split_with_sizes({0, 1, 2});
        if (asynchronous) {
          ListWork work = all_gather_async(outputs, own, world);
          work.wait();
          work.wait();
        } else {
          all_gather(outputs, own, world);
        }
        for (int r = 0; r < 3; ++r) {
          EXPECT_TRUE(at::equal(outputs[static_cast<size_t>(r)], torch::full({r, 2}, r + 1, at::kFloat)));
        }
        std::vector<at::Tensor> inputs;
        for (int r = 0; r < 3; ++r) inputs.push_back(torch::full({r, 2}, 10 * r + rank, at::kFloat));
        if (one_storage) inputs = torch::cat(inputs).split_with_sizes({0, 1, 2});
        at::Tensor sum = torch::zeros({rank, 2});
        asynchronous ? reduce_scatter_async(sum, inputs, world).wait() : reduce_scatter(sum, inputs, world);
        EXPECT_TRUE(at::equal(sum, torch::full({rank, 2}, 30 * rank + 3, at::kFloat)));
      }
    }
  });
}

TEST(Collectives, BatchesInAnyOrder) {
  on_ranks(3, [](ProcessGroup& world) {
    const int rank = world.rank(), right = (rank + 1) % 3, left = (rank + 2) % 3;
    at::Tensor large = torch::full({100'000}, rank, at::kFloat), received = torch::zeros({100'000});
    at::Tensor small = torch::full({3}, rank, at::kLong), received_small = torch::zeros({3}, at::kLong);
    std::vector<P2POp> operations{{comm::Operation::send, large, right},
                                  {comm::Operation::receive, received, left},
                                  {comm::Operation::receive, received_small, right},
                                  {comm::Operation::send, small, left}};
    if (rank == 1) std::reverse(operations.begin(), operations.end());
    for (const Work& work : batch_isend_irecv(operations, world)) work.wait();
    EXPECT_TRUE(at::equal(received, torch::full({100'000}, left, at::kFloat)));
    EXPECT_TRUE(at::equal(received_small, torch::full({3}, right, at::kLong)));
  });
}

TEST(Collectives, AsynchronousCallsKeepTheirTensorsAlive) {
  on_ranks(2, [](ProcessGroup& world) {
    std::vector<Work> works;
    for (int i = 0; i < 50; ++i) {
      at::Tensor dropped = torch::full({10000}, i, at::kFloat);
      works.push_back(all_reduce_async(dropped, world));
    }
    for (const Work& work : works) work.wait();
  });
}

TEST(Collectives, WorkOnRegisteredMemoryAndOnGradients) {
  on_ranks(2, [](ProcessGroup& world) {
    at::Tensor registered = registered_zeros({3, 2}, at::kFloat, world);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(registered.data_ptr()) % 64, 0u);
    registered += world.rank() + 1;
    all_reduce(registered, world);
    EXPECT_TRUE(at::equal(registered, torch::full({3, 2}, 3.0F)));

    at::Tensor weight = torch::ones({4}, torch::requires_grad());
    (weight * (world.rank() + 1)).sum().backward();
    all_reduce(weight.mutable_grad(), world, Reduction::average);
    EXPECT_TRUE(at::equal(weight.grad(), torch::full({4}, 1.5F)));
  });
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Collectives, RefuseWhatTheyCannotDoRight) {
  using ::testing::HasSubstr;
  on_ranks(1, [](ProcessGroup& world) {
    at::Tensor transposed = torch::zeros({2, 3}).t();
    EXPECT_THAT(message_of([&] { all_reduce(transposed, world); }), HasSubstr("not contiguous"));
    at::Tensor truth = torch::zeros({2}, at::kBool);
    EXPECT_THAT(message_of([&] { all_reduce(truth, world); }), HasSubstr("dtype"));
    at::Tensor integers = torch::zeros({2}, at::kInt);
    EXPECT_THAT(message_of([&] { all_reduce(integers, world, Reduction::average); }), HasSubstr("average"));
    at::Tensor three = torch::zeros({3}), two = torch::zeros({2}), wide = torch::zeros({2}, at::kDouble);
    EXPECT_THAT(message_of([&] { all_gather_into_tensor(three, two, world); }), HasSubstr("output has 3 elements"));
    EXPECT_THAT(message_of([&] { reduce_scatter_tensor(two, three, world); }), HasSubstr("input has 3 elements"));
    EXPECT_THAT(message_of([&] { all_gather_into_tensor(wide, two, world); }), HasSubstr("must be the same"));
    at::Tensor undefined;
    EXPECT_THAT(message_of([&] { broadcast(undefined, 0, world); }), HasSubstr("undefined"));
    EXPECT_THAT(message_of([&] { broadcast(two, 1, world); }), HasSubstr("1"));
  });
}

TEST(Collectives, RefuseSizesAndListsThatDoNotFit) {
  using ::testing::HasSubstr;
  on_ranks(1, [](ProcessGroup& world) {
    at::Tensor three = torch::zeros({3}), two = torch::zeros({2}), integers = torch::zeros({3}, at::kInt);
    at::Tensor wide = torch::zeros({3, 2}), transposed = torch::zeros({2, 3}).t();
    const auto exchange = [&](at::Tensor& output, const at::Tensor& input, const SplitSizes& sizes) {
      return message_of([&] { all_to_all_single(output, input, world, sizes); });
    };
    EXPECT_THAT(exchange(three, three, {.input = {2}}), HasSubstr("split sizes [2] of the input"));
    EXPECT_THAT(exchange(three, three, {.output = {1, 2}}), HasSubstr("split sizes [1, 2] of the output"));
    EXPECT_THAT(exchange(three, three, {.output = {-1}}), HasSubstr("sum to dim 0 = 3"));
    EXPECT_THAT(exchange(wide, three, {}), HasSubstr("the same but in dim 0"));
    EXPECT_THAT(exchange(integers, three, {}), HasSubstr("must be the same"));
    EXPECT_THAT(exchange(transposed, wide, {}), HasSubstr("not contiguous"));
    EXPECT_THAT(message_of([&] { all_to_all_single(three, two, world); }), HasSubstr("elements"));

    std::vector<at::Tensor> none, small{two}, whole{three}, of_integers{integers}, not_contiguous{transposed};
    EXPECT_THAT(message_of([&] { all_gather(none, three, world); }), HasSubstr("the list has 0 tensors"));
    EXPECT_THAT(message_of([&] { all_gather(small, three, world); }), HasSubstr("has 2 elements"));
    EXPECT_THAT(message_of([&] { all_gather(of_integers, three, world); }), HasSubstr("must be the same"));
    EXPECT_THAT(message_of([&] { all_gather(not_contiguous, wide, world); }), HasSubstr("not contiguous"));
    EXPECT_THAT(message_of([&] { reduce_scatter(two, whole, world); }), HasSubstr("has 3 elements"));
    EXPECT_THAT(message_of([&] { reduce_scatter(integers, of_integers, world, Reduction::average); }),
                HasSubstr("average"));

    EXPECT_THAT(message_of([&] { reduce(integers, 0, world, Reduction::average); }), HasSubstr("average"));
    EXPECT_THAT(message_of([&] { reduce(three, 1, world); }), HasSubstr("root"));
    EXPECT_THAT(message_of([&] { scatter(two, three, 0, world); }), HasSubstr("input has 3 elements"));
    EXPECT_THAT(message_of([&] { gather(two, three, 0, world); }), HasSubstr("output has 3 elements"));
    EXPECT_THAT(message_of([&] { gather(transposed, wide, 0, world); }), HasSubstr("not contiguous"));
    EXPECT_THAT(message_of([&] { batch_isend_irecv({{comm::Operation::send, three, 0}}, world); }),
                HasSubstr("another rank"));
    EXPECT_THAT(message_of([&] { batch_isend_irecv({{comm::Operation::send, transposed, 0}}, world); }),
                HasSubstr("not contiguous"));
  });
}

TEST(Device, PicksOrRefuses) {
  EXPECT_TRUE(pick_device("cpu", 0).is_cpu());
  EXPECT_THROW(pick_device("tpu", 0), InvalidArgument);
  if (device_count(c10::kCUDA) == 0) {
    EXPECT_TRUE(pick_device("auto", 0).is_cpu());
    EXPECT_THROW(pick_device("cuda", 0), Unsupported);
  }
}

}  // namespace
}  // namespace lockstep
