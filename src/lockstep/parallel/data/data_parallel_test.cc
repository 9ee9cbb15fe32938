#include "lockstep/parallel/data/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {
namespace {

using comm::ProcessGroup;

void on_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
    at::set_num_threads(1);
    body(world);
  });
}

// Two linears in a row; `second` is used only where a test calls it.
struct TwoLinears : torch::nn::Module {
  TwoLinears() {
    first = register_module("first", torch::nn::Linear(3, 3));
    second = register_module("second", torch::nn::Linear(3, 3));
    to(torch::kDouble);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

at::Tensor numbers(int64_t rows, int64_t columns, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return torch::randn({rows, columns}, generator, torch::kDouble);
}

// A scalar parameter whose gradient is what a test says.
struct Scalar : torch::nn::Module {
  Scalar() { value = register_parameter("value", torch::ones({1}, torch::kDouble)); }
  void backward(double gradient) { (value * gradient).sum().backward(); }
  double gradient() const { return value.grad().item<double>(); }
  at::Tensor value;
};

TEST(DataParallel, EqualsOneProcessForEveryParameter) {
  TwoLinears reference;
  const at::Tensor x = numbers(12, 3, 1);
  reference.second(reference.first(x).relu()).square().mean().backward();
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool overlap : {true, false}) {
      on_ranks(ranks, [&](ProcessGroup& world) {
        TwoLinears module;
        if (world.rank() == 0) {
          const torch::NoGradGuard no_grad;
          for (size_t i = 0; i < module.parameters().size(); ++i)
            module.parameters()[i].copy_(reference.parameters()[i]);
        }
        DataParallel data_parallel(module, world, {.bucket_bytes = 64, .overlap = overlap});
        for (int step = 0; step < 3; ++step) {  // the second step runs on buckets in the observed order
          data_parallel.zero_grad();
          module.second(module.first(x.chunk(ranks)[world.rank()]).relu()).square().mean().backward();
          for (size_t i = 0; i < module.parameters().size(); ++i) {
            EXPECT_TRUE(at::allclose(module.parameters()[i].grad(), reference.parameters()[i].grad(), 1e-12, 1e-14))
                << i;
          }
        }
        EXPECT_EQ(data_parallel.reductions(), 3);
      });
    }
  }
}

TEST(DataParallel, GradientsLiveInTheBucketsOnCacheLines) {
  on_ranks(2, [](ProcessGroup& world) {
    TwoLinears module;
    DataParallel data_parallel(module, world);
    module.second(module.first(numbers(4, 3, 1))).sum().backward();
    std::set<const void*> distinct;
    for (const auto& parameter : module.parameters()) {
      const auto address = reinterpret_cast<uintptr_t>(parameter.grad().data_ptr());
      EXPECT_EQ(address % 64, 0u);
      distinct.insert(parameter.grad().data_ptr());
    }
    EXPECT_EQ(distinct.size(), 4u);
    EXPECT_EQ(data_parallel.bucket_count(), 1u);
  });
}

// ZERO-04: (a) a parameter that no rank uses keeps an undefined gradient, as in one process; (b) one that a single rank
// uses gets that rank's gradient divided by the number of ranks. Both: no waiting for what never comes.
TEST(DataParallel, ParametersUnusedOnAllOrSomeRanks) {
  for (const bool used_on_rank_0 : {false, true}) {
    on_ranks(2, [&](ProcessGroup& world) {
      torch::manual_seed(5);
      TwoLinears module;
      DataParallel data_parallel(module, world, {.bucket_bytes = 64});
      const at::Tensor x = numbers(2, 3, 2);
      for (int step = 0; step < 2; ++step) {
        module.zero_grad();
        at::Tensor out = module.first(x);
        if (used_on_rank_0 && world.rank() == 0) out = module.second(out);
        out.sum().backward();
        if (!used_on_rank_0) {
          EXPECT_FALSE(module.second->weight.grad().defined());
          continue;
        }
        const at::Tensor hidden = module.first(x).detach();
        EXPECT_TRUE(at::allclose(module.second->weight.grad(), at::ones({3, 1}, at::kDouble) * hidden.sum(0) / 2));
      }
      EXPECT_EQ(data_parallel.collectives(), 2 * static_cast<int64_t>(data_parallel.bucket_count()));
    });
  }
}

// ZERO-07: rank gradients (1,2), then (3,4). Whichever way the guard is placed, one reduction, and 5 on both ranks.
TEST(DataParallel, AccumulationReducesOncePerStep) {
  for (const bool guard_forward_too : {false, true}) {
    on_ranks(2, [&](ProcessGroup& world) {
      Scalar module;
      DataParallel data_parallel(module, world);
      for (int step = 0; step < 2; ++step) {
        module.zero_grad();
        const double first = world.rank() == 0 ? 1 : 2, second = world.rank() == 0 ? 3 : 4;
        if (guard_forward_too) {
          const auto guard = data_parallel.no_sync();
          module.backward(first);
        } else {
          const at::Tensor loss = (module.value * first).sum();
          const auto guard = data_parallel.no_sync();
          loss.backward();
        }
        EXPECT_DOUBLE_EQ(module.gradient(), first);
        EXPECT_EQ(data_parallel.collectives(), step);
        module.backward(second);
        EXPECT_DOUBLE_EQ(module.gradient(), 5);
        EXPECT_EQ(data_parallel.reductions(), step + 1);
        EXPECT_EQ(data_parallel.collectives(), step + 1);
      }
    });
  }
}

TEST(DataParallel, SeveralForwardsBeforeTheirBackwards) {
  on_ranks(2, [](ProcessGroup& world) {
    Scalar module;
    DataParallel data_parallel(module, world);
    const double first = world.rank() == 0 ? 1 : 2, second = world.rank() == 0 ? 3 : 4;
    const at::Tensor loss_1 = (module.value * first).sum(), loss_2 = (module.value * second).sum();
    {
      const auto guard = data_parallel.no_sync();
      loss_1.backward();
    }
    loss_2.backward();
    EXPECT_DOUBLE_EQ(module.gradient(), 5);
    EXPECT_EQ(data_parallel.collectives(), 1);
  });
}

// GRAD-17: two calls of two micro-batches each, every raw gradient 1. Each loss is divided by all four, once.
TEST(DataParallel, AccumulationOverSeveralCallsScalesTheLossNotTheBuffer) {
  on_ranks(2, [](ProcessGroup& world) {
    Scalar module;
    DataParallel data_parallel(module, world);
    for (int call = 0; call < 2; ++call) {
      for (int m = 0; m < 2; ++m) {
        if (call == 1 && m == 1) {
          module.backward(1.0 / 4);
        } else {
          const auto guard = data_parallel.no_sync();
          module.backward(1.0 / 4);
        }
      }
    }
    EXPECT_DOUBLE_EQ(module.gradient(), 1.0);
    EXPECT_EQ(data_parallel.reductions(), 1);
  });
}

TEST(DataParallel, SummingTwiceIsRefused) {
  on_ranks(2, [](ProcessGroup& world) {
    Scalar module;
    DataParallel data_parallel(module, world, {.reduction = comm::Reduction::sum});
    module.backward(1);
    EXPECT_DOUBLE_EQ(module.gradient(), 2);
    EXPECT_THROW(module.backward(1), Unsupported);
  });
}

TEST(DataParallel, UnequalNumbersOfMicrobatchesAndNoneAtAll) {
  on_ranks(3, [](ProcessGroup& world) {
    Scalar module;
    DataParallel data_parallel(module, world, {.reduction = comm::Reduction::sum, .finish_in_backward = false});
    // Rank 0: no micro-batch; rank 1: one; rank 2: two.
    for (int step = 0; step < 2; ++step) {
      data_parallel.zero_grad();
      for (int m = 0; m < world.rank(); ++m) {
        if (m + 1 < world.rank()) {
          const auto guard = data_parallel.no_sync();
          module.backward(10);
        } else {
          module.backward(1);
        }
      }
      data_parallel.finish();
      EXPECT_DOUBLE_EQ(module.gradient(), 12);
    }
  });
}

// MP-04: 1 and then 256 times 2^-9, less than bf16 can add to 1. Buckets of fp32 reach 1.5, and so does the fixed tree;
// in the parameter's type 1 stays 1. Nothing of a micro-batch's own gradient is kept.
TEST(DataParallel, LowPrecisionGradientsAccumulateInFp32WhenAsked) {
  const auto gradient_of = [](std::optional<at::ScalarType> type, bool fixed_tree) {
    double gradient = 0;
    on_ranks(1, [&](ProcessGroup& world) {
      torch::nn::Module module;
      const at::Tensor value = module.register_parameter("value", at::ones({1}, at::kBFloat16));
      DataParallel data_parallel(module, world,
                                 {.reduction = comm::Reduction::sum,
                                  .gradient_type = type,
                                  .fixed_tree = fixed_tree,
                                  .finish_in_backward = false});
      const void* home = nullptr;
      for (int microbatch = 0; microbatch <= 256; ++microbatch) {
        std::optional<DataParallel::NoSync> local_only;
        if (microbatch < 256) local_only.emplace(data_parallel);
        (value * (microbatch == 0 ? 1.0 : 0x1p-9)).sum().backward();
        if (fixed_tree) continue;
        if (microbatch == 0) home = value.grad().data_ptr();
        EXPECT_EQ(value.grad().data_ptr(), home);
      }
      data_parallel.finish();
      EXPECT_EQ(value.grad().scalar_type(), type.value_or(at::kBFloat16));
      gradient = value.grad().item<double>();
    });
    return gradient;
  };
  EXPECT_EQ(gradient_of(at::kFloat, false), 1.5);
  EXPECT_EQ(gradient_of(at::kFloat, true), 1.5);
  EXPECT_EQ(gradient_of({}, false), 1);
}

// A bucket that is on its way cannot take another gradient: refused, not added to what peers are reading.
TEST(DataParallel, RefusesAGradientForABucketThatWasSent) {
  on_ranks(1, [&](ProcessGroup& world) {
    torch::nn::Module module;
    const at::Tensor value = module.register_parameter("value", at::ones({1}));
    DataParallel data_parallel(module, world, {.reduction = comm::Reduction::sum, .finish_in_backward = false});
    (value * 2).sum().backward();
    EXPECT_THROW((value * 3).sum().backward(), Unsupported);
  });
}

// libtorch's hooks run for a parameter that a backward leads to but has no gradient for.
TEST(DataParallel, AGradientThatIsUndefinedIsNoArrival) {
  struct Never : torch::autograd::Function<Never> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x, const at::Tensor&) {
      return x.clone();
    }
    static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*,
                                            const std::vector<at::Tensor>& gradients) {
      return {gradients[0], at::Tensor()};
    }
  };
  on_ranks(2, [&](ProcessGroup& world) {
    torch::nn::Module module;
    const at::Tensor used = module.register_parameter("used", at::ones({1}));
    const at::Tensor unused = module.register_parameter("unused", at::ones({1}));
    DataParallel data_parallel(module, world, {.reduction = comm::Reduction::sum});
    for (int step = 0; step < 2; ++step) {
      data_parallel.zero_grad();
      Never::apply(used * 2, unused).sum().backward();
      EXPECT_EQ(used.grad().item<double>(), 4);
      EXPECT_FALSE(unused.grad().defined());
    }
  });
}

// Over ranks as well: 1 and three times 2^-9.
TEST(DataParallel, LowPrecisionGradientsAreReducedInFp32WhenAsked) {
  for (const bool widened : {true, false}) {
    on_ranks(4, [&](ProcessGroup& world) {
      torch::nn::Module module;
      const at::Tensor value = module.register_parameter("value", at::ones({1}, at::kBFloat16));
      DataParallelOptions options{.reduction = comm::Reduction::sum};
      if (widened) options.gradient_type = at::kFloat;
      DataParallel data_parallel(module, world, options);
      (value * (world.rank() == 0 ? 1.0 : 0x1p-9)).sum().backward();
      EXPECT_EQ(value.grad().item<double>(), widened ? 1 + 0x3p-9 : 1 + 0x1p-7);
    });
  }
}

TEST(DataParallel, SharedParametersAreReducedOnce) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_parameter("first", numbers(3, 3, 7));
      second = register_parameter("second", first);
    }
    at::Tensor forward(const at::Tensor& x) { return x.matmul(first).tanh().matmul(second); }
    at::Tensor first, second;
  };
  Tied reference;
  const at::Tensor x = numbers(4, 3, 3);
  reference.forward(x).mean().backward();
  on_ranks(2, [&](ProcessGroup& world) {
    Tied module;
    DataParallel data_parallel(module, world);
    module.forward(x.chunk(2)[world.rank()]).mean().backward();
    EXPECT_TRUE(at::allclose(module.first.grad(), reference.first.grad(), 1e-12, 1e-14));
    EXPECT_EQ(data_parallel.collectives(), 1);
  });
}

TEST(DataParallel, BuffersFollowRankZero) {
  struct WithBuffers : torch::nn::Module {
    WithBuffers() {
      norm = register_module("norm", torch::nn::BatchNorm1d(3));
      to(torch::kDouble);
      mask = register_buffer("mask", torch::zeros({2}, torch::kBool));
    }
    torch::nn::BatchNorm1d norm{nullptr};
    at::Tensor mask;
  };
  on_ranks(2, [](ProcessGroup& world) {
    WithBuffers module;
    DataParallel data_parallel(module, world);
    module.norm(numbers(8, 3, world.rank())).sum().backward();
    const at::Tensor batch_of_rank_0 = numbers(8, 3, 0);
    EXPECT_TRUE(at::allclose(module.norm->running_mean, batch_of_rank_0.mean(0) * 0.1));
  });
}

TEST(DataParallel, RefusesWhatIsNoReductionOfGradients) {
  on_ranks(1, [](ProcessGroup& world) {
    Scalar module;
    EXPECT_THROW(DataParallel(module, world, {.reduction = comm::Reduction::max}), InvalidArgument);
  });
}

TEST(DataParallel, ModulesThatDifferAreNamed) {
  EXPECT_THROW(on_ranks(2,
                        [](ProcessGroup& world) {
                          torch::nn::Linear module(3, world.rank() == 0 ? 3 : 4);
                          const DataParallel data_parallel(*module, world);
                        }),
               ProtocolMismatch);
}

TEST(PlanBuckets, InOrderAlignedByTypeAndSize) {
  const std::vector<at::Tensor> parameters = {torch::zeros({10}), torch::zeros({100}),
                                              torch::zeros({3}, torch::kDouble), torch::zeros({5})};
  const std::vector<size_t> order = {3, 0, 2, 1};
  const auto plans = plan_buckets(parameters, order, 100);
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[0].slots.size(), 2u);  // 5 and 10 floats, each padded to 16, then two flags
  EXPECT_EQ(plans[0].slots[1].offset, 16);
  EXPECT_EQ(plans[0].flags_offset, 32);
  EXPECT_EQ(plans[0].elements, 34);
  EXPECT_EQ(plans[1].type, at::kDouble);
  EXPECT_EQ(plans[2].slots[0].parameter, 1u);
}

// The tree over micro-batches does not depend on how they are dealt to ranks.
TEST(MicrobatchTree, AddsInOneOrderWhateverTheRanks) {
  const auto value = [](int m) { return torch::full({1}, 1.0 / (3.0 + m * m), torch::kFloat); };
  for (const int microbatches : {1, 2, 3, 5, 6, 7, 8, 13, 16}) {
    MicrobatchTree whole;
    for (int m = 0; m < microbatches; ++m) whole.push(m, value(m));
    at::Tensor expected = torch::zeros({1});
    whole.fold_into(expected);
    for (const int per_rank : {1, 2, 4, 8}) {
      MicrobatchTree over_ranks;
      for (int first = 0; first < microbatches; first += per_rank) {
        MicrobatchTree local;
        for (int m = first; m < std::min(first + per_rank, microbatches); ++m) local.push(m - first, value(m));
        at::Tensor sum = torch::zeros({1});
        local.fold_into(sum);
        over_ranks.push(first / per_rank, sum);
      }
      at::Tensor actual = torch::zeros({1});
      over_ranks.fold_into(actual);
      EXPECT_TRUE(at::equal(actual, expected)) << microbatches << " micro-batches, " << per_rank << " per rank";
    }
  }
}

TEST(MicrobatchTree, TheOrderInWhichMicrobatchesComeChangesNoBit) {
  const auto value = [](int64_t m) {
    return torch::full({1}, 1.0 / (3.0 + static_cast<double>(m * m)), torch::kFloat);
  };
  std::mt19937 random(1);
  for (const int64_t microbatches : {1, 3, 7, 8, 13}) {
    std::vector<int64_t> order(static_cast<size_t>(microbatches));
    std::iota(order.begin(), order.end(), int64_t{0});
    const auto sum_in_order = [&] {
      MicrobatchTree tree;
      for (const int64_t m : order) tree.push(m, value(m));
      at::Tensor sum = torch::zeros({1});
      tree.fold_into(sum);
      return sum;
    };
    const at::Tensor rising = sum_in_order();
    std::ranges::reverse(order);
    EXPECT_TRUE(at::equal(sum_in_order(), rising)) << "falling, " << microbatches;
    for (int round = 0; round < 10; ++round) {
      std::ranges::shuffle(order, random);
      EXPECT_TRUE(at::equal(sum_in_order(), rising)) << microbatches;
    }
  }
}

TEST(MicrobatchTree, KeepsOnePartialPerBit) {
  MicrobatchTree tree;
  for (int m = 0; m < 7; ++m) tree.push(m, torch::ones({1}));
  EXPECT_EQ(tree.kept(), 3u);
  at::Tensor sum = torch::zeros({1});
  tree.fold_into(sum);
  EXPECT_EQ(sum.item<float>(), 7);
  tree.fold_into(sum);
  EXPECT_EQ(sum.item<float>(), 0);
}

}  // namespace
}  // namespace lockstep::parallel
