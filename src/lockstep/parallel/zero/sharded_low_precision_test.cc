// Sharded states of bf16 and fp16 modules: fp32 masters in shards, gradients in fp32 or in the weights' type.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cmath>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/optim/loss_scale.h"
#include "lockstep/optim/master_weights.h"
#include "lockstep/parallel/zero/sharded_data_parallel.h"

namespace lockstep::parallel {
namespace {

using at::Tensor;
using comm::ProcessGroup;

void on_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
    at::set_num_threads(1);
    body(world);
  });
}

std::unique_ptr<optim::Optimizer> sgd(std::vector<optim::Parameter> parameters) {
  return optim::make_sgd(std::move(parameters), {});
}
std::unique_ptr<optim::Optimizer> adamw(std::vector<optim::Parameter> parameters) {
  return optim::make_adamw(std::move(parameters), {});
}

// Values that fp16 holds and fp32 moves finely.
Tensor some(int64_t size, int64_t seed) {
  return at::arange(seed, seed + size, at::kFloat).mul(0.37).sin();
}

ShardedUnit unit_of(const std::vector<int64_t>& sizes, at::ScalarType type) {
  ShardedUnit unit{"all", {}};
  for (const int64_t size : sizes) {
    unit.parameters.push_back({text("p", unit.parameters.size()), some(size, size).to(type).requires_grad_()});
  }
  return unit;
}

// The backward of sum(p * factor) over all parameters: each element's gradient is `factor`.
void backward(ShardedDataParallel& sharded, const ShardedUnit& unit, double factor) {
  const Tensor x = at::ones({}).requires_grad_();
  sharded
      .run("all", x,
           [&](const Tensor& in) {
             Tensor sum = in;
             for (const optim::Parameter& parameter : unit.parameters)
               sum = sum + (parameter.tensor * factor).to(at::kFloat).sum();
             return sum;
           })
      .backward();
}

// Each update is less than half of what bf16 can add to 1.
TEST(ShardedLowPrecision, MastersKeepUpdatesThatTheWeightsTypeWouldLose) {
  for (const int stage : {1, 2, 3}) {
    for (const bool masters : {true, false}) {
      on_ranks(2, [&](ProcessGroup& world) {
        ShardedUnit unit{"all", {{"w", at::ones({100}, at::kBFloat16).requires_grad_()}}};
        ShardedDataParallel sharded({unit}, world, sgd, {.stage = stage, .master_weights = masters});
        for (int step = 0; step < 64; ++step) {
          sharded.zero_grad();
          backward(sharded, unit, 1);
          sharded.step(-0x1p-10);
        }
        const Tensor trained = sharded.parameters()[0].tensor;
        EXPECT_EQ(trained.scalar_type(), masters ? at::kFloat : at::kBFloat16);
        EXPECT_TRUE(at::equal(trained.to(at::kFloat), at::full({100}, masters ? 1.0625f : 1.0f))) << stage;
        if (stage < 3) EXPECT_TRUE(at::equal(unit.parameters[0].tensor.detach(), trained.to(at::kBFloat16)));
      });
    }
  }
}

// What one process does with such parameters.
struct Alone {
  explicit Alone(const std::vector<int64_t>& sizes) : unit(unit_of(sizes, at::kHalf)), weights(tie(unit)) {
    optimizer = adamw(weights.masters());
  }
  static optim::MasterWeights tie(const ShardedUnit& unit) {
    std::vector<optim::Parameter> masters;
    std::vector<Tensor> model;
    for (const optim::Parameter& parameter : unit.parameters) {
      masters.push_back({parameter.name, parameter.tensor.detach().to(at::kFloat), parameter.decay});
      model.push_back(parameter.tensor);
    }
    return {std::move(masters), std::move(model)};
  }
  void step(double gradient) {
    for (const optim::Parameter& master : weights.masters())
      master.tensor.mutable_grad() = at::full_like(master.tensor, gradient);
    optimizer->step(0.01);
    weights.publish();
  }
  ShardedUnit unit;
  optim::MasterWeights weights;
  std::unique_ptr<optim::Optimizer> optimizer;
};

// ZERO-03: fp16 with a dynamic scale on 4 ranks, of which some own nothing. Sizes 0, 1, N-1, N, N+1, 2N-1 about the
// ranks and about the 32 halves of a cache line. The second step overflows on one rank: all skip it.
TEST(ShardedLowPrecision, RanksThatOwnNothingTakePartAndSkipAlike) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{1, 3}, {0, 1}, {3}, {4}, {5}, {7}, {31}, {32}, {33}, {63}, {127, 0, 129}}) {
    for (const int stage : {1, 2, 3}) {
      const std::string what = text("sizes ", join(sizes), ", stage ", stage);
      int64_t elements = 0;
      for (const int64_t size : sizes) elements += size;
      std::atomic<int64_t> owned = 0, idle = 0;
      on_ranks(4, [&](ProcessGroup& world) {
        Alone alone(sizes);
        const ShardedUnit unit = unit_of(sizes, at::kHalf);
        ShardedDataParallel sharded({unit}, world, adamw,
                                    {.stage = stage, .reduction = comm::Reduction::sum, .gradient_type = at::kFloat});
        owned += sharded.owned_elements();
        idle += sharded.owned_elements() == 0;
        optim::LossScale scale({.initial = 1024});
        for (int step = 1; step <= 3; ++step) {
          sharded.zero_grad();
          const bool overflows = step == 2 && world.rank() == 1 && elements > 0;
          backward(sharded, unit, overflows ? std::numeric_limits<double>::infinity() : scale.value() * step);
          sharded.unscale(1 / scale.value());
          const bool finite = std::isfinite(sharded.grad_norm());
          EXPECT_EQ(finite, step != 2) << what;
          if (finite) {
            EXPECT_NEAR(sharded.grad_norm(), 4 * step * std::sqrt(static_cast<double>(elements)), 1e-4) << what;
            sharded.step(0.01);
            alone.step(4 * step);
          }
          scale.update(finite);
        }
        EXPECT_EQ(scale.value(), 512);
        const auto trained = sharded.parameters();
        ASSERT_EQ(trained.size(), sizes.size());
        for (size_t i = 0; i < sizes.size(); ++i) {
          EXPECT_TRUE(at::allclose(trained[i].tensor, alone.weights.masters()[i].tensor, 1e-6, 1e-7)) << what;
        }
      });
      EXPECT_EQ(owned, elements) << what;
      if (elements <= 96) EXPECT_GT(idle, 0) << what;
    }
  }
}

// ZERO-08: 1024 bf16 weights, reduced in fp32.
TEST(ShardedLowPrecision, GradientsBetweenMicrobatchesAreWholeWhenDeferredAndShardsWhenImmediate) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const bool immediate : {false, true}) {
      on_ranks(ranks, [&](ProcessGroup& world) {
        const Tensor weight = at::ones({32, 32}, at::kBFloat16).requires_grad_();
        ShardedDataParallel sharded({{"all", {{"weight", weight}}}}, world, adamw,
                                    {.stage = 2, .gradient_type = at::kFloat});
        if (immediate) {
          weight.sum().backward();
        } else {
          const auto guard = sharded.no_sync();
          weight.sum().backward();
        }
        EXPECT_EQ(sharded.gradient_bytes(), immediate ? 4096 / ranks : 4096);
        if (!immediate) sharded.finish();
        EXPECT_EQ(sharded.gradient_bytes(), 4096 / ranks);
        EXPECT_LE(sharded.buffer_bytes(), 4096);
      });
    }
  }
}

// MP-04, over micro-batches and ranks: 1 and 512 times 2^-9 make 2 in fp32, and 1 in bf16.
TEST(ShardedLowPrecision, GradientsAddUpInTheirType) {
  for (const int stage : {1, 2, 3}) {
    for (const bool widened : {true, false}) {
      on_ranks(2, [&](ProcessGroup& world) {
        const ShardedUnit unit{"all", {{"w", at::ones({3}, at::kBFloat16).requires_grad_()}}};
        const std::optional type = widened ? std::optional(at::kFloat) : std::nullopt;
        ShardedDataParallel sharded(
            {unit}, world, sgd,
            {.stage = stage, .reduction = comm::Reduction::sum, .gradient_type = type, .finish_in_backward = false});
        for (int microbatch = 0; microbatch <= 256; ++microbatch) {
          const auto guard = sharded.no_sync();
          const double first = world.rank() == 0 ? 1 : 0;
          backward(sharded, unit, microbatch == 0 ? first : 0x1p-9);
        }
        sharded.finish();
        const Tensor gradient = sharded.gradients()[0].tensor;
        EXPECT_EQ(gradient.scalar_type(), at::kFloat);  // the masters'
        EXPECT_TRUE(at::equal(gradient, at::full({3}, widened ? 2.0f : 1.5f))) << gradient << " stage " << stage;
        sharded.step(0.1);
        EXPECT_THROW(sharded.gradients(), Unsupported);
      });
    }
  }
}

// MP-06 of a user's module: weights that are loaded after it was sharded, then a step that changes nothing.
TEST(ShardedLowPrecision, MastersFollowWeightsThatAreWrittenInto) {
  for (const int stage : {1, 2}) {
    for (const bool known : {true, false}) {
      on_ranks(3, [&](ProcessGroup& world) {
        const ShardedUnit unit = unit_of({100, 7}, at::kBFloat16);
        ShardedDataParallel sharded({unit}, world, adamw, {.stage = stage, .bucket_bytes = 64});
        const Tensor loaded = some(100, 1000).to(at::kBFloat16), weight = unit.parameters[0].tensor;
        {
          const torch::NoGradGuard no_grad;
          Tensor(known ? weight : weight.data()).copy_(loaded);
        }
        for (int step = 0; step < 2; ++step) {
          sharded.zero_grad();
          backward(sharded, unit, 1);
          sharded.step(0);
        }
        // Behind autograd's back masters cannot know, and go back to what was before: the failure that is to be seen.
        EXPECT_EQ(at::equal(weight.detach(), loaded), known) << "stage " << stage;
        EXPECT_EQ(at::equal(sharded.parameters()[0].tensor, loaded.to(at::kFloat)), known);
        EXPECT_TRUE(at::equal(unit.parameters[1].tensor.detach(), some(7, 7).to(at::kBFloat16)));
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::parallel
