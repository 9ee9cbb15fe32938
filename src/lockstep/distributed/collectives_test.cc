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
