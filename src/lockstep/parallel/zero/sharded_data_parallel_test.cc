#include "lockstep/parallel/zero/sharded_data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/optim/clip.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::parallel {
namespace {

using at::Tensor;
using comm::ProcessGroup;
using ::testing::HasSubstr;

void on_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(20)}, [&](ProcessGroup& world) {
    at::set_num_threads(1);
    body(world);
  });
}

Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return torch::randn(sizes, generator, torch::kDouble);
}

std::unique_ptr<optim::Optimizer> adamw(std::vector<optim::Parameter> parameters) {
  return optim::make_adamw(std::move(parameters), {});
}

// Linears of odd sizes with an activation between; decay on matrices only.
torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(3, 7), torch::nn::Tanh(), torch::nn::Linear(7, 5),
                            torch::nn::Linear(5, 2));
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  int64_t seed = 10;
  for (Tensor parameter : net->parameters()) parameter.copy_(numbers(parameter.sizes(), ++seed));
  return net;
}

bool is_matrix(const std::string& /*name*/, const Tensor& parameter) {
  return parameter.dim() > 1;
}

struct Outcome {
  std::vector<double> norms;
  std::vector<Tensor> weights, gradients;  // gradients of the last step
};

// One process, whole batches, AdamW, clipping.
Outcome reference(int steps, const Tensor& x) {
  torch::nn::Sequential net = make_net();
  std::vector<optim::Parameter> parameters;
  for (const auto& item : net->named_parameters()) {
    parameters.push_back({item.key(), item.value(), is_matrix(item.key(), item.value())});
  }
  const auto optimizer = adamw(parameters);
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    net->zero_grad();
    net->forward(x).square().mean().backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
    outcome.gradients.clear();
    for (const Tensor& gradient : gradients) outcome.gradients.push_back(gradient.clone());
    outcome.norms.push_back(optim::clip_by_global_norm(gradients, 0.5));
    optimizer->step(0.01);
  }
  for (const Tensor& parameter : net->parameters()) outcome.weights.push_back(parameter.detach().clone());
  return outcome;
}

void expect_near(const std::vector<NamedTensor>& actual, const std::vector<Tensor>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(at::allclose(actual[i].tensor, expected[i], 1e-10, 1e-12)) << what << " " << actual[i].name;
  }
}

TEST(ShardedDataParallel, EqualsOneProcessInEveryStageGroupAndOrder) {
  const Tensor x = numbers({24, 3}, 1);
  const Outcome expected = reference(3, x);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {1, 2, 3}) {
      for (const int group : {0, 1, 2}) {
        for (const bool overlap : {true, false}) {
          if (group > 0 && ranks % group != 0) continue;
          const std::string what =
              text("stage ", stage, ", ", ranks, " ranks, groups of ", group, ", overlap ", overlap);
          on_ranks(ranks, [&](ProcessGroup& world) {
            torch::nn::Sequential net = make_net();
            if (world.rank() != 0) net->to(torch::kDouble), net->parameters()[0].data().zero_();
            ShardedDataParallel sharded(
                *net, world, adamw,
                {.stage = stage, .shard_ranks = group, .bucket_bytes = 64, .overlap = overlap, .decay = is_matrix});
            for (int step = 0; step < 3; ++step) {
              sharded.zero_grad();
              sharded.forward(x.chunk(ranks)[world.rank()]).square().mean().backward();
              if (step == 2) expect_near(sharded.gradients(), expected.gradients, what);
              EXPECT_NEAR(sharded.clip(0.5), expected.norms[step], 1e-10) << what;
              sharded.step(0.01);
            }
            expect_near(sharded.parameters(), expected.weights, what);
          });
        }
      }
    }
  }
}

TEST(ShardedDataParallel, UnitsOfAnyModuleThroughRunWithTiedAndFrozenParameters) {
  struct Net : torch::nn::Module {
    Net() {
      table = register_parameter("table", numbers({6, 4}, 3));
      first = register_module("first", torch::nn::Linear(4, 4));
      second = register_module("second", torch::nn::Linear(4, 4));
      to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      int64_t seed = 20;
      for (Tensor parameter : parameters()) parameter.copy_(numbers(parameter.sizes(), ++seed));
      second->bias.set_requires_grad(false);
    }
    Tensor table;
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  const Tensor tokens = torch::tensor({0, 1, 5, 5, 2, 3, 1, 4});
  Net net;
  Tensor x = at::embedding(net.table, tokens);
  at::linear(net.second(net.first(x).tanh()), net.table).square().mean().backward();
  std::vector<Tensor> expected;
  for (const auto& parameter : net.parameters()) {
    if (parameter.requires_grad()) expected.push_back(parameter.grad());
  }
  for (const bool keep : {false, true}) {
    on_ranks(2, [&](ProcessGroup& world) {
      Net mine;
      const auto unit = [&](const std::string& name, const std::vector<Tensor>& tensors) {
        ShardedUnit result{name, {}};
        for (const Tensor& tensor : tensors)
          result.parameters.push_back({text(name, ".", result.parameters.size()), tensor});
        return result;
      };
      ShardedDataParallel sharded({unit("embed", {mine.table}), unit("first", mine.first->parameters()),
                                   unit("second", mine.second->parameters()), unit("head", {mine.table})},
                                  world, adamw, {.keep_gathered = keep});
      for (int step = 0; step < 3; ++step) {
        sharded.zero_grad();
        const Tensor ids = tokens.chunk(2)[world.rank()];
        Tensor h = sharded.run("embed", ids, [&](const Tensor& in) { return at::embedding(mine.table, in); },
                               {.parameters_in_backward = false});
        h = sharded.run("first", h, [&](const Tensor& in) { return mine.first(in).tanh(); });
        h = sharded.run("second", h, [&](const Tensor& in) { return mine.second(in); });
        h = sharded.run("head", h, [&](const Tensor& in) { return at::linear(in, mine.table); }, {.keep = true});
        h.square().mean().backward();
        expect_near(sharded.gradients(), expected, "tied and frozen");
      }
      EXPECT_EQ(sharded.gathered()->peak_live(), keep ? 3 : 2);
      sharded.zero_grad();
      try {
        mine.first->weight.sum();
        ADD_FAILURE() << "a weight that is not gathered was read";
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("unit \"first\" are not gathered"));
      }
      EXPECT_THROW(sharded.run("third", tokens, [](const Tensor& in) { return in; }), InvalidArgument);
    });
  }
}

// What a rank has sent, in elements of double: collectives at their least.
double elements_sent(const trace::Recorder& recorder, int ranks) {
  double sent = 0;
  for (const trace::Event& event : recorder.events()) {
    const std::string_view name = event.name();
    if (name.find("gradients") == std::string_view::npos && name.find("weights") == std::string_view::npos) continue;
    const double elements = static_cast<double>(event.bytes) / sizeof(double);
    sent += elements * (name.starts_with("all_reduce") ? 2.0 / ranks : 1) * (ranks - 1);
  }
  return sent;
}

TEST(ShardedDataParallel, SendsTwiceItsParametersAStepAndInStage3ThreeTimes) {
  constexpr int64_t kWidth = 16, kLayers = 4;
  for (const int ranks : {1, 2, 4}) {
    for (const int stage : {1, 2, 3}) {
      on_ranks(ranks, [&](ProcessGroup& world) {
        trace::Recorder recorder(world.rank());
        torch::nn::Sequential net;
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
        }
        net->to(torch::kDouble);
        ShardedDataParallel sharded(*net, world, adamw, {.stage = stage, .bucket_bytes = 1});
        world.set_recorder(&recorder);
        constexpr int kSteps = 3;
        for (int step = 0; step < kSteps; ++step) {
          sharded.zero_grad();
          sharded.forward(numbers({2, kWidth}, step)).sum().backward();
          sharded.step(0.1);
        }
        world.set_recorder(nullptr);
        const double parameters = kLayers * kWidth * kWidth, factor = stage == 3 ? 3 : 2;
        EXPECT_DOUBLE_EQ(elements_sent(recorder, ranks) / kSteps, factor * parameters * (ranks - 1) / ranks)
            << "stage " << stage;
        EXPECT_LE(stage == 3 ? sharded.gathered()->peak_live() : 0, 2);
      });
    }
  }
}

// One number per rank, whose gradient is what a test says.
struct Scalar : torch::nn::Module {
  Scalar() { value = register_parameter("value", torch::ones({1}, torch::kDouble)); }
  void backward(double gradient) { (value * gradient).sum().backward(); }
  Tensor value;
};

// ZERO-01: rank r has gradient r; every factoring of 4 ranks into replicas and shards gives 1.5 and the same weights.
TEST(ShardedDataParallel, ReplicasOfShardGroupsStayEqualToTheBit) {
  for (const int shard_ranks : {4, 2, 1}) {
    std::vector<std::vector<double>> weights(4);
    on_ranks(4, [&](ProcessGroup& world) {
      Scalar module;
      ShardedDataParallel sharded(module, world, adamw, {.stage = 2, .shard_ranks = shard_ranks});
      for (int step = 0; step < 3; ++step) {
        sharded.zero_grad();
        module.backward(world.rank());
        EXPECT_DOUBLE_EQ(sharded.gradients()[0].tensor.item<double>(), 1.5);
        EXPECT_DOUBLE_EQ(sharded.grad_norm(), 1.5);  // counted once, however many hold it
        sharded.step(0.1);
        weights[static_cast<size_t>(world.rank())].push_back(module.value.item<double>());
      }
    });
    for (const auto& of_rank : weights) EXPECT_EQ(of_rank, weights.front()) << shard_ranks;
  }
}

// ZERO-03: shards that are empty on some ranks. Sizes about the 8 doubles of a cache line and its multiples, on 4
// ranks.
TEST(ShardedDataParallel, RanksThatOwnNothingTakePart) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{1, 3}, {1}, {0, 1}, {7}, {8}, {9}, {31}, {32}, {33}, {63, 0, 2}}) {
    for (const int stage : {1, 2, 3}) {
      int64_t elements = 0;
      for (const int64_t size : sizes) elements += size;
      std::atomic<int64_t> owned = 0, idle = 0;
      on_ranks(4, [&](ProcessGroup& world) {
        ShardedUnit unit{"all", {}};
        std::vector<Tensor> alone;
        for (const int64_t size : sizes) {
          alone.push_back(at::ones({size}, at::kDouble));
          unit.parameters.push_back({text(unit.parameters.size()), at::ones({size}, at::kDouble).requires_grad_()});
        }
        std::vector<optim::Parameter> plain;
        for (const Tensor& tensor : alone) plain.push_back({"", tensor});
        const auto optimizer = adamw(plain);
        ShardedDataParallel sharded({unit}, world, adamw, {.stage = stage, .reduction = comm::Reduction::sum});
        owned += sharded.owned_elements();
        idle += sharded.owned_elements() == 0;
        for (int step = 1; step <= 2; ++step) {
          sharded.zero_grad();
          const Tensor x = at::ones({}, at::kDouble).requires_grad_();
          sharded
              .run("all", x,
                   [&](const Tensor& in) {
                     Tensor sum = in;
                     for (const optim::Parameter& parameter : unit.parameters)
                       sum = sum + (parameter.tensor * step).sum();
                     return sum;
                   })
              .backward();
          sharded.step(0.01);
          for (const Tensor& tensor : alone) tensor.mutable_grad() = at::full_like(tensor, 4 * step);
          optimizer->step(0.01);
        }
        expect_near(sharded.parameters(), alone, text("sizes ", join(sizes), ", stage ", stage));
      });
      EXPECT_EQ(owned, elements);
      if (elements <= 24) EXPECT_GT(idle, 0);
    }
  }
}

// ZERO-04: a parameter that no rank uses keeps its value and its state; one that a single rank uses gets that rank's
// gradient over the number of ranks. The ranks issue the same collectives.
TEST(ShardedDataParallel, ParametersUnusedOnAllOrSomeRanks) {
  for (const int stage : {1, 2, 3}) {
    for (const bool used_on_rank_0 : {false, true}) {
      on_ranks(2, [&](ProcessGroup& world) {
        torch::nn::Sequential net = make_net();
        ShardedDataParallel sharded(*net, world, adamw, {.stage = stage, .bucket_bytes = 64});
        const auto before = sharded.parameters();
        const std::vector<Tensor> old = {before[0].tensor.clone(), before[4].tensor.clone()};
        const Tensor x = numbers({2, 3}, 2);
        for (int step = 0; step < 2; ++step) {
          sharded.zero_grad();
          Tensor h =
              sharded.run("0", x, [&](const Tensor& in) { return net[0]->as<torch::nn::Linear>()->forward(in); });
          h = sharded.run("2", h, [&](const Tensor& in) { return net[2]->as<torch::nn::Linear>()->forward(in); });
          const Tensor last =
              sharded.run("3", h, [&](const Tensor& in) { return net[3]->as<torch::nn::Linear>()->forward(in); });
          Tensor loss = used_on_rank_0 && world.rank() == 0 ? last.sum() : h.sum();
          // In stage 3 ranks meet in each unit, in backward too.
          if (stage == 3 && used_on_rank_0 && world.rank() == 1) loss = loss + 0 * last.sum();
          loss.backward();
          const Tensor gradient = sharded.gradients()[5].tensor;
          EXPECT_TRUE(at::allclose(gradient, at::full({2}, used_on_rank_0 ? 1.0 : 0.0, at::kDouble))) << gradient;
          sharded.step(0.1);
        }
        const auto after = sharded.parameters();
        EXPECT_FALSE(at::equal(after[0].tensor, old[0]));
        EXPECT_EQ(at::equal(after[4].tensor, old[1]), !used_on_rank_0);
        EXPECT_EQ(sharded.state().back().tensor.item<double>(), used_on_rank_0 ? 2 : 0);  // its count of updates
        EXPECT_EQ(sharded.reductions(), 2 * (stage == 3 ? 3 : 6));
      });
    }
  }
}

// ZERO-07: rank gradients (1,2), then (3,4). Under no_sync one reduction, without it one each; 5 either way.
TEST(ShardedDataParallel, AccumulationReducesOncePerStepOrEachTime) {
  for (const int stage : {1, 2}) {
    for (const bool immediate : {false, true}) {
      if (immediate && stage == 1) continue;
      on_ranks(2, [&](ProcessGroup& world) {
        Scalar module;
        ShardedDataParallel sharded(module, world, adamw, {.stage = stage});
        for (int step = 0; step < 2; ++step) {
          sharded.zero_grad();
          const double first = world.rank() == 0 ? 1 : 2, second = world.rank() == 0 ? 3 : 4;
          if (immediate) {
            module.backward(first);
          } else {
            const auto guard = sharded.no_sync();
            module.backward(first);
          }
          module.backward(second);
          EXPECT_DOUBLE_EQ(sharded.gradients()[0].tensor.item<double>(), 5);
          EXPECT_EQ(sharded.reductions(), (step + 1) * (immediate ? 2 : 1));
        }
        EXPECT_THROW(module.backward(1), Unsupported);  // the norm is known: zero_grad() first
      });
    }
  }
}

TEST(ShardedDataParallel, AccumulatingOntoReducedGradientsIsRefusedInStage1) {
  on_ranks(2, [](ProcessGroup& world) {
    Scalar module;
    ShardedDataParallel sharded(module, world, adamw, {.stage = 1});
    module.backward(1);
    EXPECT_THROW(module.backward(1), Unsupported);
  });
}

// ZERO-08: bytes of gradients between micro-batches, of 1024 parameters in fp32.
TEST(ShardedDataParallel, GradientsBetweenMicrobatchesAreWholeWhenDeferredAndShardsWhenImmediate) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const bool immediate : {false, true}) {
      on_ranks(ranks, [&](ProcessGroup& world) {
        const Tensor weight = at::ones({32, 32}).requires_grad_();
        ShardedDataParallel sharded({{"all", {{"weight", weight}}}}, world, adamw, {.stage = 2});
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

// ZERO-11: weights of 3, 5, 7 and 2 elements, even ones without decay, in one flat range. A step with zero gradients
// changes the others alone; shards put together are each parameter to the bit.
TEST(ShardedDataParallel, DecayAndNamesBelongToTheParameterNotToTheRange) {
  for (const int stage : {1, 2, 3}) {
    on_ranks(2, [&](ProcessGroup& world) {
      ShardedUnit unit{"all", {}};
      std::vector<Tensor> start;
      for (const int64_t size : {3, 5, 7, 2}) {
        start.push_back(numbers({size}, size));
        unit.parameters.push_back(
            {text("p", size), start.back().clone().requires_grad_(), unit.parameters.size() % 2 == 1});
      }
      ShardedDataParallel sharded({unit}, world, adamw, {.stage = stage});
      const auto whole = sharded.parameters();
      for (size_t i = 0; i < start.size(); ++i) {
        EXPECT_EQ(whole[i].name, unit.parameters[i].name);
        EXPECT_TRUE(at::equal(whole[i].tensor, start[i]));
      }
      const Tensor x = at::ones({}, at::kDouble).requires_grad_();
      sharded
          .run("all", x,
               [&](const Tensor& in) {
                 Tensor sum = in;
                 for (const optim::Parameter& parameter : unit.parameters) sum = sum + 0 * parameter.tensor.sum();
                 return sum;
               })
          .backward();
      sharded.step(0.1);
      const auto after = sharded.parameters();
      for (size_t i = 0; i < start.size(); ++i) {
        if (i % 2 == 0) EXPECT_TRUE(at::equal(after[i].tensor, start[i]));
        if (i % 2 == 1) EXPECT_TRUE(at::allclose(after[i].tensor, start[i] * (1 - 0.1 * 0.1), 1e-14, 0));
      }
    });
  }
}

TEST(ShardedDataParallel, AGradientThatIsNotFiniteOnOneRankIsSeenByAll) {
  for (const int stage : {1, 2, 3}) {
    on_ranks(3, [&](ProcessGroup& world) {
      torch::nn::Sequential net = make_net();
      ShardedDataParallel sharded(*net, world, adamw, {.stage = stage});
      Tensor x = numbers({2, 3}, 1);
      if (world.rank() == 1) x = x / 0;
      sharded.forward(x).sum().backward();
      EXPECT_FALSE(std::isfinite(sharded.grad_norm()));
      EXPECT_EQ(sharded.first_not_finite(), "0.weight");
    });
  }
}

// Eight micro-batches whose sum depends on the order: with fixed_tree it does not depend on the ranks.
TEST(ShardedDataParallel, FixedTreeGivesTheSameBitsOn1And2And4Ranks) {
  const Tensor gradients =
      numbers({8}, 5).to(at::kFloat) * at::tensor({1e4f, 1.f, 1e-3f, 1e5f, 1.f, 1e2f, 1e-4f, 10.f});
  const auto at = [&](int64_t i) { return gradients[i]; };
  const Tensor expected = ((at(0) + at(1)) + (at(2) + at(3))) + ((at(4) + at(5)) + (at(6) + at(7)));
  for (const int stage : {1, 2, 3}) {
    for (const int ranks : {1, 2, 4}) {
      on_ranks(ranks, [&](ProcessGroup& world) {
        const Tensor weight = at::ones({3}).requires_grad_();
        ShardedDataParallel sharded({{"all", {{"weight", weight}}}}, world, adamw,
                                    {.stage = stage, .reduction = comm::Reduction::sum, .fixed_tree = true});
        const Tensor own = gradients.chunk(ranks)[world.rank()];
        for (int64_t i = 0; i < own.numel(); ++i) {
          std::optional<ShardedDataParallel::NoSync> local_only;
          if (i + 1 < own.numel()) local_only.emplace(sharded);
          const Tensor x = at::ones({}).requires_grad_();
          sharded.run("all", x, [&](const Tensor& in) { return in + (weight * own[i]).sum(); }).backward();
        }
        EXPECT_TRUE(at::equal(sharded.gradients()[0].tensor, expected.expand({3}))) << stage << " on " << ranks;
      });
    }
  }
}

std::string refusal(ShardedDataParallelOptions options, bool sequential = true) {
  std::string message = "accepted";
  on_ranks(2, [&](ProcessGroup& world) {
    torch::nn::Sequential net = make_net();
    Scalar scalar;
    torch::nn::Module& module = sequential ? static_cast<torch::nn::Module&>(*net) : scalar;
    try {
      ShardedDataParallel sharded(module, world, adamw, options);
    } catch (const InvalidArgument& error) {
      if (world.rank() == 0) message = error.what();
    }
  });
  return message;
}

TEST(ShardedDataParallel, RefusesWhatCannotBe) {
  EXPECT_THAT(refusal({.stage = 4}), HasSubstr("stage = 4: must be 1, 2 or 3"));
  EXPECT_THAT(refusal({.stage = 0}), HasSubstr("without sharding use DataParallel (nearest: 1)"));
  EXPECT_THAT(refusal({.shard_ranks = 3}), HasSubstr("shard_ranks = 3: must divide the 2 ranks"));
  EXPECT_THAT(refusal({.reduction = comm::Reduction::max}), HasSubstr("by average or sum (nearest: average)"));
  EXPECT_THAT(refusal({.units = {"0", "9"}}), HasSubstr("options.units has \"9\", which is no block"));
  EXPECT_THAT(refusal({.units = {"0"}}), HasSubstr("parameter 2.weight is in no unit of stage 3"));
  EXPECT_THAT(refusal({}, /*sequential=*/false), HasSubstr("stage 3 gathers unit by unit"));
}

}  // namespace
}  // namespace lockstep::parallel
