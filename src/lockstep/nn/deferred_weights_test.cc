#include "lockstep/nn/deferred_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <random>

#include "lockstep/nn/linear.h"
#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/transformer.h"

namespace lockstep::nn {
namespace {

using at::Tensor;

constexpr int kStages = 2, kMicrobatches = 4;

// A stage's micro-batch: B, or I and later W. Forwards are made before the first backward, so all are in flight.
struct Step {
  char kind;
  int stage, microbatch;
};

spec::ModelSpec small(const std::string& preset, bool tied) {
  spec::ModelSpec model = spec::preset(preset);
  model.layers = 4;
  model.hidden = 16;
  model.ffn_hidden = 24;
  model.vocab = 20;
  model.sequence = 6;
  model.dropout = 0.2;
  model.tie_embeddings = tied;
  return model;
}

// The transformer in two stages of two layers, both here.
class TwoStages {
 public:
  TwoStages(const spec::ModelSpec& model, spec::Recompute recompute, bool defers)
      : transformer_(model, /*seed=*/1, {.dtype = at::kDouble}),
        seams_(/*seed=*/1, {defers ? &deferred_ : nullptr, /*head=*/true}),
        recompute_(recompute) {
    for (int m = 0; m < kMicrobatches; ++m) {
      for (int stage = 0; stage < kStages; ++stage) forward(stage, m);
    }
  }

  void perform(const Step& step) {
    const DeferredWeights::Key key{step.stage, step.microbatch};
    if (step.kind == 'B') return backward(step.stage, step.microbatch);
    if (step.kind == 'W') return deferred_.drain(key);
    const auto deferral = deferred_.defer(key);
    backward(step.stage, step.microbatch);
  }

  std::map<std::string, Tensor> gradients() const {
    std::map<std::string, Tensor> result;
    for (const Parameter& parameter : transformer_.parameter_list()) {
      const Tensor& gradient = parameter.tensor.grad();
      result[parameter.spec.name] = gradient.defined() ? gradient.clone() : gradient;
    }
    return result;
  }

  const DeferredWeights& deferred() const { return deferred_; }

 private:
  struct Held {
    Tensor input, output;
  };

  void forward(int stage, int m) {
    const Context context{seams_.seams(), {m, 0, 2 * m}, {.mode = recompute_}};
    const Tensor tokens = at::arange(12).add(5 * m).remainder(20).view({2, 6});
    Held& held = held_[{stage, m}];
    if (stage == 0) {
      held.output = transformer_.blocks({0, 2}, transformer_.embed(tokens, context), context);
    } else {
      held.input = held_[{0, m}].output.detach().requires_grad_();
      held.output =
          transformer_.token_losses(transformer_.blocks({2, 2}, held.input, context), tokens.roll(1), context).sum();
    }
  }

  void backward(int stage, int m) {
    const Held held = std::exchange(held_[{stage, m}], {});
    held.output.backward(stage == 0 ? std::exchange(gradient_[m], {}) : Tensor());
    if (stage > 0) gradient_[m] = held.input.grad();
  }

  DeferredWeights deferred_;
  Transformer transformer_;
  LocalSeams seams_;
  spec::Recompute recompute_;
  std::map<std::pair<int, int>, Held> held_;
  std::map<int, Tensor> gradient_;
};

std::vector<Step> in_order(char kind) {
  std::vector<Step> steps;
  for (int m = 0; m < kMicrobatches; ++m) {
    for (int stage = kStages; stage-- > 0;) steps.push_back({kind, stage, m});
  }
  return steps;
}

// Every I in order; each W any time after its I, and after the W of the same stage before it. `mixed`: some are one B.
std::vector<Step> with_delays(unsigned seed, bool mixed) {
  std::mt19937 random(seed);
  std::vector<Step> steps;
  std::array<std::vector<int>, kStages> waiting;
  const auto weights = [&](int stage) {
    steps.push_back({'W', stage, waiting[static_cast<size_t>(stage)].front()});
    waiting[static_cast<size_t>(stage)].erase(waiting[static_cast<size_t>(stage)].begin());
  };
  for (Step step : in_order('I')) {
    auto& stage = waiting[static_cast<size_t>(step.stage)];
    if (mixed && random() % 3 == 0) {
      while (!stage.empty()) weights(step.stage);
      step.kind = 'B';
    } else {
      stage.push_back(step.microbatch);
    }
    steps.push_back(step);
    for (int other = 0; other < kStages; ++other) {
      while (!waiting[static_cast<size_t>(other)].empty() && random() % 3 == 0) weights(other);
    }
  }
  for (int stage = 0; stage < kStages; ++stage) {
    while (!waiting[static_cast<size_t>(stage)].empty()) weights(stage);
  }
  return steps;
}

struct Case {
  std::string preset;
  bool tied = false;
  spec::Recompute recompute = spec::Recompute::none;
};

std::map<std::string, Tensor> run(const Case& of, const std::vector<Step>& steps, bool defers = true) {
  at::set_num_threads(1);
  TwoStages stages(small(of.preset, of.tied), of.recompute, defers);
  for (const Step& step : steps) stages.perform(step);
  EXPECT_TRUE(stages.deferred().empty());
  EXPECT_EQ(stages.deferred().kept_bytes(), 0);
  return stages.gradients();
}

void expect_same_bits(const std::map<std::string, Tensor>& actual, const std::map<std::string, Tensor>& expected,
                      const std::string& what) {
  for (const auto& [name, gradient] : expected) {
    ASSERT_TRUE(actual.at(name).defined()) << what << " " << name;
    EXPECT_TRUE(at::equal(actual.at(name), gradient)) << what << " " << name;
  }
}

class DeferredWeightsTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Models, DeferredWeightsTest,
                         testing::Values(Case{"gpt-tiny"}, Case{"gpt-tiny", false, spec::Recompute::full},
                                         Case{"gpt-tiny", false, spec::Recompute::sqrt},
                                         Case{"gpt-tiny", false, spec::Recompute::selective}, Case{"llama-tiny"},
                                         Case{"llama-tiny", false, spec::Recompute::full},
                                         Case{"llama-tiny", false, spec::Recompute::sqrt},
                                         Case{"llama-tiny", false, spec::Recompute::selective}));

TEST_P(DeferredWeightsTest, InputGradientsThenWeightGradientsHaveTheBitsOfOneBackward) {
  const auto expected = run(GetParam(), in_order('B'), /*defers=*/false);
  expect_same_bits(run(GetParam(), in_order('B')), expected, "whole backwards");
  std::vector<Step> all_at_the_end = in_order('I');
  for (const Step& step : in_order('W')) all_at_the_end.push_back(step);
  expect_same_bits(run(GetParam(), all_at_the_end), expected, "all at the end");
  for (unsigned seed = 0; seed < 6; ++seed) {
    expect_same_bits(run(GetParam(), with_delays(seed, seed % 2 == 1)), expected, text("seed ", seed));
  }
}

// Where stages are apart the head's share of a tied weight comes with the last stage's W, the embedding's with the
// first stage's I: the same sum, in another order.
TEST(DeferredWeights, ATiedHeadIsAddedInW) {
  const Case tied{"gpt-tiny", true};
  const auto expected = run(tied, in_order('B')), actual = run(tied, with_delays(3, false));
  for (const auto& [name, gradient] : expected) {
    EXPECT_TRUE(at::allclose(actual.at(name), gradient, 0, 1e-12)) << name;
  }
}

// W of later micro-batches first: linear layers' gradients are added in that order, the others' in that of I.
TEST(DeferredWeights, AddsInTheOrderOfW) {
  const Case gpt{"gpt-tiny"};
  std::vector<Step> steps = in_order('I'), backwards = in_order('B');
  std::ranges::stable_sort(backwards, {}, [](const Step& step) { return -step.microbatch; });
  for (const Step& step : backwards) steps.push_back({'W', step.stage, step.microbatch});
  const auto rising = run(gpt, in_order('B')), falling = run(gpt, backwards), actual = run(gpt, steps);
  for (const auto& [name, gradient] : actual) {
    const bool deferred = name.find("norm") == std::string::npos && !name.starts_with("embed");
    EXPECT_TRUE(at::equal(gradient, (deferred ? falling : rising).at(name))) << name;
  }
}

TEST(DeferredWeights, InputGradientsLeaveTheWeightsOfLinearLayersAlone) {
  TwoStages stages(small("gpt-tiny", false), spec::Recompute::full, true);
  for (const Step& step : in_order('I')) stages.perform(step);
  for (const auto& [name, gradient] : stages.gradients()) {
    const bool deferred = name.find("norm") == std::string::npos && !name.starts_with("embed");
    EXPECT_EQ(gradient.defined(), !deferred) << name;
  }
}

// The head and each of four layers keep, per micro-batch of 12 tokens: x and dY of q, k and v (their x is one), of the
// output, of up and of down.
TEST(DeferredWeights, KeepsInputsAndOutputGradientsUntilTheyAreUsed) {
  for (const spec::Recompute recompute : {spec::Recompute::none, spec::Recompute::full, spec::Recompute::selective}) {
    TwoStages stages(small("gpt-tiny", false), recompute, true);
    const int64_t of_layer = 12 * ((16 + 3 * 16) + (16 + 16) + (16 + 24) + (24 + 16)) * 8;
    const int64_t of_head = 12 * (16 + 20) * 8;
    stages.perform({'I', 1, 0});
    EXPECT_EQ(stages.deferred().kept_bytes(), 2 * of_layer + of_head);
    stages.perform({'I', 0, 0});
    EXPECT_EQ(stages.deferred().kept_bytes(), 4 * of_layer + of_head);
    stages.perform({'W', 1, 0});
    EXPECT_EQ(stages.deferred().kept_bytes(), 2 * of_layer);
    stages.perform({'W', 0, 0});
    EXPECT_EQ(stages.deferred().kept_bytes(), 0);
  }
}

// -- one layer -------------------------------------------------------------------------------------------------------

c10::weak_intrusive_ptr<c10::StorageImpl> watch(const Tensor& tensor) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

// Gradients of x, weight and, if there is one, bias.
std::vector<Tensor> gradients(const Tensor& y, const std::vector<Tensor>& leaves, const Tensor& gradient) {
  y.backward(gradient);
  std::vector<Tensor> result;
  for (const Tensor& leaf : leaves) {
    result.push_back(leaf.grad());
    leaf.mutable_grad() = Tensor();
  }
  return result;
}

TEST(DeferredLinear, HasTheBitsOfLibtorchs) {
  at::set_num_threads(1);
  DeferredWeights deferred;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const auto& [tokens, in, out, has_bias] :
         {std::tuple{5, 7, 3, true}, {64, 48, 100, false}, {33, 96, 17, true}, {1, 1, 8, false}, {1, 5, 1, true}}) {
      const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(type).requires_grad_(); };
      const Tensor x = random({3, tokens, in}), weight = random({out, in}), bias = has_bias ? random({out}) : Tensor();
      std::vector<Tensor> leaves = {x, weight};
      if (has_bias) leaves.push_back(bias);
      const Tensor expected = at::linear(x, weight, bias), gradient = at::randn_like(expected);
      const auto expected_gradients = gradients(expected, leaves, gradient);
      const Tensor y = nn::linear(x, {weight, bias}, &deferred);
      EXPECT_TRUE(at::equal(y, expected)) << type << " " << tokens << " " << in << " " << out;
      const auto actual = gradients(y, leaves, gradient);
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_TRUE(at::equal(actual[i], expected_gradients[i])) << type << " " << tokens << " " << in << " " << i;
      }
    }
  }
}

TEST(DeferredLinear, FreesEachLayersTensorsAsItGoes) {
  DeferredWeights deferred;
  const Tensor weight = at::randn({3, 4}).requires_grad_(), later_weight = at::randn({3, 3}).requires_grad_();
  Tensor x = at::randn({2, 4}).requires_grad_(), gradient = at::randn({2, 3});
  const auto kept_x = watch(x), kept_gradient = watch(gradient);
  bool freed = false;  // what the later layer kept, when the earlier one's gradient arrives
  {
    const auto deferral = deferred.defer({});
    nn::linear(nn::linear(x, {weight, {}}, &deferred), {later_weight, {}}, &deferred).backward(gradient);
  }
  x.reset();
  gradient.reset();
  EXPECT_FALSE(kept_x.expired());
  EXPECT_FALSE(kept_gradient.expired());
  weight.register_hook([&](const Tensor&) { freed = kept_gradient.expired(); });
  deferred.drain({});
  EXPECT_TRUE(freed);
  EXPECT_TRUE(kept_x.expired());
  EXPECT_TRUE(kept_gradient.expired());
}

// What requires no gradient has none: neither in B nor in W.
TEST(DeferredLinear, FrozenParametersStayWithout) {
  DeferredWeights deferred;
  for (const bool split : {false, true}) {
    const Tensor x = at::randn({2, 4}).requires_grad_(), weight = at::randn({3, 4});
    const Tensor bias = at::randn({3}).requires_grad_();
    const Tensor y = nn::linear(x, {weight, bias}, &deferred);
    if (split) {
      {
        const auto deferral = deferred.defer({0, 5});
        y.sum().backward();
      }
      EXPECT_FALSE(bias.grad().defined());
      deferred.drain({0, 5});
    } else {
      y.sum().backward();
    }
    EXPECT_TRUE(at::allclose(x.grad(), weight.sum(0).expand_as(x)));
    EXPECT_TRUE(at::equal(bias.grad(), at::full({3}, 2.0)));
    EXPECT_FALSE(weight.grad().defined());
  }
}

// One weight in two layers: its gradients are one when they arrive.
TEST(DeferredLinear, AWeightUsedTwiceArrivesOnce) {
  DeferredWeights deferred;
  const Tensor x = at::randn({2, 3}), weight = at::randn({3, 3}).requires_grad_();
  int arrivals = 0;
  weight.register_hook([&](const Tensor&) { ++arrivals; });
  const auto twice = [&] { return nn::linear(nn::linear(x, {weight, {}}, &deferred), {weight, {}}, &deferred).sum(); };
  const Tensor expected = torch::autograd::grad({twice()}, {weight}).front();
  {
    const auto deferral = deferred.defer({});
    twice().backward();
  }
  arrivals = 0;
  deferred.drain({});
  EXPECT_EQ(arrivals, 1);
  EXPECT_TRUE(at::equal(weight.grad(), expected));
}

TEST(DeferredWeights, RefusesWhatWasNotPutOff) {
  DeferredWeights deferred;
  EXPECT_ANY_THROW(deferred.drain({0, 0}));
  {
    const auto deferral = deferred.defer({0, 0});
  }
  EXPECT_ANY_THROW((void)deferred.defer({0, 0})) << "put off twice";
  deferred.drain({0, 0});  // no layer deferred
  EXPECT_TRUE(deferred.empty());
}

}  // namespace
}  // namespace lockstep::nn
