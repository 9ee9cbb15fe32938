// Backwards in two halves (nn/deferred_weights.h) where ranks meet: tensor ranks in the layers, data ranks in the
// reduction of gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <list>
#include <map>
#include <optional>

#include "lockstep/nn/transformer.h"
#include "lockstep/parallel/data/data_parallel.h"
#include "lockstep/parallel/pipeline/small_pipeline.h"
#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/parallel/tensor/tensor_parallel.h"
#include "lockstep/parallel/zero/sharded_data_parallel.h"
#include "lockstep/schedule/last_gradients.h"

namespace lockstep::parallel {
namespace {

using at::Tensor;
using schedule::Action;
using Kind = Action::Kind;
using Gradients = std::map<std::string, Tensor>;

// What a rank does with four micro-batches.
constexpr const char* kWhole = "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3";
constexpr const char* kDelayed = "0F0,0F1,0I0,0F2,0W0,0I1,0F3,0I2,0I3,0W1,0W2,0W3";
constexpr const char* kAllAtTheEnd = "0F0,0F1,0F2,0F3,0I0,0I1,0I2,0I3,0W0,0W1,0W2,0W3";
constexpr const char* kMixed = "0F0,0F1,0I0,0F2,0W0,0B1,0F3,0I2,0W2,0I3,0W3";

spec::RunPlan small_plan(bool llama, bool tied) {
  spec::RunPlan plan;
  plan.model = spec::preset(llama ? "llama-tiny" : "gpt-tiny");
  plan.model.layers = 3;
  plan.model.hidden = 24;
  plan.model.heads = 4;
  plan.model.kv_heads = llama ? 2 : 4;
  plan.model.ffn_hidden = 26;
  plan.model.vocab = 13;
  plan.model.sequence = 7;
  plan.model.dropout = 0.1;
  plan.model.tie_embeddings = tied;
  return plan;
}

// How a rank's gradients leave.
class Reducer {
 public:
  virtual ~Reducer() = default;
  // Of a backward that does not bring the last gradients: while what this returns lives, they only add up.
  virtual std::shared_ptr<void> accumulate_only(Kind /*kind*/) { return nullptr; }
  // After each backward, B or W.
  virtual void after(bool /*last*/) {}
  virtual void begin_step(const std::vector<nn::Parameter>& parameters) {
    for (const nn::Parameter& parameter : parameters) parameter.tensor.mutable_grad() = Tensor();
  }
  virtual Gradients finish(const std::vector<nn::Parameter>& parameters) {
    Gradients result;
    for (const auto& [spec, tensor, region] : parameters) result[spec.name] = tensor.grad().clone();
    return result;
  }
  virtual int64_t sent() const { return 0; }
};

// A rank's transformer, whole in depth.
class Model {
 public:
  Model(const spec::RunPlan& plan, comm::ProcessGroup& tensor_group, int data_rank, bool head)
      : plan_(plan),
        data_rank_(data_rank),
        tensor_parallel_(plan, tensor_group, {&deferred_, head}),
        transformer_(plan.model, parameters_of(plan, tensor_group)) {}

  const std::vector<nn::Parameter>& parameters() const { return transformer_.parameter_list(); }
  nn::PartSeam* parts = nullptr;

  // One step; gradients as they are when it is over.
  Gradients step(const std::string& list, Reducer& reducer) {
    reducer.begin_step(parameters());
    const std::vector<Action> actions = schedule::parse_table(list).actions_by_rank.front();
    const std::vector<bool> last = schedule::brings_last_gradients(actions);
    for (size_t i = 0; i < actions.size(); ++i) {
      perform(actions[i], last[i], reducer);
      sent_after_[to_string(actions[i])] = reducer.sent();
    }
    EXPECT_TRUE(deferred_.empty());
    return reducer.finish(parameters());
  }

  // Collectives for gradients that had begun after an action of the last step.
  int64_t sent_after(const std::string& action) const { return sent_after_.at(action); }

 private:
  static std::vector<nn::Parameter> parameters_of(const spec::RunPlan& plan, comm::ProcessGroup& tensor_group) {
    spec::RunPlan one_copy = plan;
    one_copy.parallel.data = 1;
    const auto list = spec::parameters(plan.model);
    const mesh::Mesh mesh = spec::make_mesh(one_copy.parallel, tensor_group.size());
    return nn::create_parameters(list, spec::place_on_rank(list, one_copy, mesh, tensor_group.rank()), /*seed=*/1,
                                 {.dtype = at::kDouble});
  }

  void perform(const Action& action, bool last, Reducer& reducer) {
    if (action.kind == Kind::forward) return forward(action.microbatch);
    const nn::DeferredWeights::Key key{action.stage, action.microbatch};
    const std::shared_ptr<void> local = last ? nullptr : reducer.accumulate_only(action.kind);
    if (action.kind == Kind::weight_grad) {
      deferred_.drain(key);
    } else {
      std::optional<nn::DeferredWeights::Deferral> deferral;
      if (action.kind == Kind::input_grad) deferral.emplace(deferred_, key);
      std::exchange(losses_[action.microbatch], {}).backward();
    }
    if (schedule::completes_gradient(action.kind)) reducer.after(last);
  }

  void forward(int m) {
    const Tensor tokens = at::arange(14).mul(3).add(5 * m + data_rank_).remainder(13).view({2, 7});
    const nn::Context context{
        tensor_parallel_.seams(), {m, 0, 2 * (4 * data_rank_ + m)}, {.mode = plan_.parallel.recompute}, parts};
    losses_[m] = transformer_.loss_sum(tokens, tokens.roll(1), context);
  }

  spec::RunPlan plan_;
  int data_rank_;
  nn::DeferredWeights deferred_;
  TensorParallel tensor_parallel_;
  nn::Transformer transformer_;
  std::map<int, Tensor> losses_;
  std::map<std::string, int64_t> sent_after_;
};

void expect_same_bits(const Gradients& actual, const Gradients& expected, const std::string& what) {
  for (const auto& [name, gradient] : expected) {
    EXPECT_TRUE(at::equal(actual.at(name), gradient)) << what << ", " << name;
  }
}

// -- tensor ranks ----------------------------------------------------------------------------------------------------

TEST(SplitBackward, OverTensorRanksHasTheBitsOfOneBackward) {
  for (const bool llama : {false, true}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const auto recompute : {spec::Recompute::none, spec::Recompute::full, spec::Recompute::selective}) {
        spec::RunPlan plan = small_plan(llama, /*tied=*/false);
        plan.parallel.tensor = 2;
        plan.parallel.sequence_parallel = sequence_parallel;
        plan.parallel.recompute = recompute;
        on_ranks(2, [&](comm::ProcessGroup& world) {
          Model model(plan, world, 0, /*head=*/true);
          Reducer none;
          const Gradients expected = model.step(kWhole, none);
          for (const char* actions : {kDelayed, kAllAtTheEnd, kMixed}) {
            expect_same_bits(model.step(actions, none), expected,
                             text(llama ? "llama" : "gpt", sequence_parallel ? " sp " : " ", actions));
          }
        });
      }
    }
  }
}

// The rank's positions alone are kept of what sequence parallelism gathers.
TEST(SplitBackward, KeepsNothingGathered) {
  std::array<int64_t, 2> kept{};
  for (const bool sequence_parallel : {false, true}) {
    on_ranks(2, [&](comm::ProcessGroup& world) {
      const TensorGroup group(world, {.sequence_parallel = sequence_parallel, .sequence = 8});
      nn::DeferredWeights deferred;
      const auto weight = [&](int64_t out, int64_t in) { return some_numbers(out, 1, in).requires_grad_(); };
      const Tensor x = some_numbers(sequence_parallel ? 4 : 8, 2, 6).unsqueeze(0).requires_grad_();
      const nn::Projection in{weight(3, 6), {}}, out{weight(6, 3), {}};
      const Tensor inner = column_linears(x, {&in, 1}, group, "in", &deferred).front();
      const Tensor y = row_linear(inner, out, group, "out", &deferred);
      {
        const auto deferral = deferred.defer({});
        y.backward(at::ones_like(y));
      }
      if (world.rank() == 0) kept[sequence_parallel ? 1 : 0] = deferred.kept_bytes();
      deferred.drain({});
    });
  }
  EXPECT_EQ(kept[0], (8 * 6 + 8 * 3 + 8 * 3 + 8 * 6) * 8) << "x, its output's gradient; inner, y's gradient";
  EXPECT_EQ(kept[1], (4 * 6 + 8 * 3 + 8 * 3 + 4 * 6) * 8);
}

// -- data ranks ------------------------------------------------------------------------------------------------------

class Replicas : public Reducer {
 public:
  Replicas(const Model& model, comm::ProcessGroup& group, DataParallelOptions options)
      : data_parallel_(named(model), group, with_sum(std::move(options))) {}

  std::shared_ptr<void> accumulate_only(Kind /*kind*/) override {
    return std::shared_ptr<DataParallel::NoSync>(new DataParallel::NoSync(data_parallel_));
  }
  void begin_step(const std::vector<nn::Parameter>& /*parameters*/) override { data_parallel_.zero_grad(); }
  Gradients finish(const std::vector<nn::Parameter>& parameters) override {
    data_parallel_.finish();
    return Reducer::finish(parameters);
  }
  int64_t sent() const override { return data_parallel_.collectives(); }
  size_t buckets() const { return data_parallel_.bucket_count(); }

 private:
  static std::vector<NamedTensor> named(const Model& model) {
    std::vector<NamedTensor> result;
    for (const auto& [spec, tensor, region] : model.parameters()) result.push_back({spec.name, tensor});
    return result;
  }
  static DataParallelOptions with_sum(DataParallelOptions options) {
    options.reduction = comm::Reduction::sum;
    options.bucket_bytes = 4000;
    options.finish_in_backward = false;
    return options;
  }

  DataParallel data_parallel_;
};

// Ranks that put off their weights differently send the same buckets in the same order: another order would be a
// mismatch.
TEST(SplitBackward, OverDataRanksHasTheBitsOfOneBackward) {
  for (const bool overlap : {true, false}) {
    const spec::RunPlan plan = small_plan(/*llama=*/false, /*tied=*/true);
    on_ranks(2, [&](comm::ProcessGroup& world) {
      const auto alone = world.split(std::vector{world.rank()}, "alone");
      Model model(plan, *alone, world.rank(), /*head=*/false);
      Replicas replicas(model, world, {.overlap = overlap});
      const Gradients expected = model.step(kWhole, replicas);
      for (const char* actions : {kDelayed, kAllAtTheEnd, kMixed, world.rank() == 0 ? kDelayed : kAllAtTheEnd}) {
        expect_same_bits(model.step(actions, replicas), expected, text("overlap ", overlap, " ", actions));
      }
    });
  }
}

// Buckets of norms and embeddings, complete with the last I, leave before the last W; those of linear layers in it.
TEST(SplitBackward, BucketsLeaveInTheHalfThatCompletesThem) {
  const spec::RunPlan plan = small_plan(/*llama=*/false, /*tied=*/true);
  on_ranks(2, [&](comm::ProcessGroup& world) {
    const auto alone = world.split(std::vector{world.rank()}, "alone");
    Model model(plan, *alone, world.rank(), /*head=*/false);
    Replicas replicas(model, world, {});
    model.step(kDelayed, replicas);  // finds the order in which gradients become ready
    const int64_t before = replicas.sent();
    model.step(kDelayed, replicas);
    const auto buckets = static_cast<int64_t>(replicas.buckets());
    EXPECT_EQ(model.sent_after("0I2"), before);
    EXPECT_GT(model.sent_after("0I3"), before) << "the last I";
    EXPECT_LT(model.sent_after("0I3"), before + buckets);
    EXPECT_EQ(model.sent_after("0W2"), model.sent_after("0I3"));
    EXPECT_EQ(model.sent_after("0W3"), before + buckets) << "the last W";
  });
}

// Two uses of a weight in different halves: its bucket waits for both.
TEST(SplitBackward, ATiedWeightMayArriveInBothHalves) {
  const spec::RunPlan plan = small_plan(/*llama=*/false, /*tied=*/true);
  on_ranks(2, [&](comm::ProcessGroup& world) {
    const auto alone = world.split(std::vector{world.rank()}, "alone");
    Model together(plan, *alone, world.rank(), /*head=*/false), apart(plan, *alone, world.rank(), /*head=*/true);
    Replicas of_together(together, world, {});
    Replicas of_apart(apart, world,
                      {.arrivals = [](const std::string& name) { return name == "embed.tokens.weight" ? 2 : 1; }});
    const Gradients expected = together.step(kDelayed, of_together);
    for (int step = 0; step < 3; ++step) {
      const int64_t before = of_apart.sent();
      const auto buckets = static_cast<int64_t>(of_apart.buckets());
      const Gradients actual = apart.step(kDelayed, of_apart);
      EXPECT_EQ(apart.sent_after("0W3") - before, buckets);
      for (const auto& [name, gradient] : expected) {
        EXPECT_TRUE(at::allclose(actual.at(name), gradient, 0, 1e-12)) << name;
      }
    }
  });
}

// -- ZeRO ------------------------------------------------------------------------------------------------------------

class Shards : public Reducer, public nn::PartSeam {
 public:
  Shards(const spec::RunPlan& plan, const Model& model, comm::ProcessGroup& group, ShardedDataParallelOptions options,
         bool immediate)
      : sharded_(units(plan, model), group, make_optimizer(plan), with_sum(std::move(options))),
        immediate_(immediate) {}

  std::shared_ptr<void> accumulate_only(Kind kind) override {
    if (immediate_ && kind != Kind::input_grad) return nullptr;
    return std::shared_ptr<ShardedDataParallel::NoSync>(new ShardedDataParallel::NoSync(sharded_));
  }
  void after(bool last) override {
    if (immediate_ && !last) sharded_.finish();
  }
  void begin_step(const std::vector<nn::Parameter>& /*parameters*/) override { sharded_.zero_grad(); }
  Gradients finish(const std::vector<nn::Parameter>& /*parameters*/) override {
    sharded_.finish();
    Gradients result;
    for (const NamedTensor& gradient : sharded_.gradients()) result[gradient.name] = gradient.tensor.clone();
    return result;
  }
  int64_t sent() const override { return sharded_.reductions(); }

  Tensor run(std::string_view part, const Tensor& input, const std::function<Tensor(const Tensor&)>& forward) override {
    return sharded_.run(std::string(part), input, forward,
                        {.keep = part == "head", .parameters_in_backward = part != "embed"});
  }

 private:
  static std::vector<ShardedUnit> units(const spec::RunPlan& plan, const Model& model) {
    std::vector<ShardedUnit> result;
    for (const spec::ModelPart& part : spec::parts(plan.model)) {
      ShardedUnit& unit = result.emplace_back(ShardedUnit{part.name, {}});
      for (const auto& [spec, tensor, region] : model.parameters()) {
        if (std::ranges::find(part.parameters, spec.name) == part.parameters.end()) continue;
        unit.parameters.push_back({spec.name, tensor, spec.decay});
      }
    }
    return result;
  }
  static ShardedDataParallel::MakeOptimizer make_optimizer(const spec::RunPlan& plan) {
    return [train = plan.train](std::vector<optim::Parameter> pieces) {
      return optim::make_optimizer(train, std::move(pieces));
    };
  }
  static ShardedDataParallelOptions with_sum(ShardedDataParallelOptions options) {
    options.reduction = comm::Reduction::sum;
    options.bucket_bytes = 4000;
    options.finish_in_backward = false;
    return options;
  }

  ShardedDataParallel sharded_;
  bool immediate_;
};

TEST(SplitBackward, OverShardedStatesHasTheBitsOfOneBackward) {
  for (const int stage : {1, 2, 3}) {
    for (const bool immediate : {false, true}) {
      for (const auto recompute : {spec::Recompute::none, spec::Recompute::full}) {
        if (immediate && stage == 1) continue;
        spec::RunPlan plan = small_plan(/*llama=*/true, /*tied=*/false);
        plan.parallel.recompute = recompute;
        on_ranks(2, [&](comm::ProcessGroup& world) {
          const auto alone = world.split(std::vector{world.rank()}, "alone");
          Model model(plan, *alone, world.rank(), /*head=*/true);
          Shards shards(plan, model, world, {.stage = stage}, immediate);
          model.parts = &shards;
          const Gradients expected = model.step(kWhole, shards);
          for (const char* actions : {kDelayed, kAllAtTheEnd, kMixed}) {
            const std::string what = text("stage ", stage, " immediate ", immediate, " ", actions);
            const Gradients actual = model.step(actions, shards);
            if (immediate) {  // rounds differently: a micro-batch's two halves may leave with other micro-batches'
              for (const auto& [name, gradient] : expected) {
                EXPECT_TRUE(at::allclose(actual.at(name), gradient, 0, 1e-12)) << what << ", " << name;
              }
            } else {
              expect_same_bits(actual, expected, what);
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::parallel
