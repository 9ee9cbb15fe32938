#include "lockstep/nn/recompute.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// A module as users write them: libtorch's own layers, dropout from libtorch's generator, several outputs, one layer
// used twice.
struct UserNet : torch::nn::Module {
  UserNet() {
    torch::manual_seed(1);
    embedding = register_module("embedding", torch::nn::Embedding(20, 8));
    first = register_module("first", torch::nn::Linear(8, 8));
    second = register_module("second", torch::nn::Linear(8, 8));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
  }

  // Two outputs: [B,S,8] and its mean over S.
  Tensors layer(const Tensor& x) {
    const Tensor hidden = torch::dropout(torch::gelu(first(norm(x))), 0.5, is_training());
    const Tensor out = x + torch::dropout(second(hidden), 0.3, is_training());
    return {out, out.mean(1)};
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

using Wrap = std::function<Tensors(const SegmentFunction&, const Tensors&)>;
const Wrap kPlain = [](const SegmentFunction& function, const Tensors& inputs) { return function(inputs); };
const Wrap kRecomputed = [](const SegmentFunction& function, const Tensors& inputs) {
  return recompute(function, inputs);
};

struct Outcome {
  double loss = 0;
  Tensors gradients;
  Tensor random_state;
};

// Two micro-batches of a loss, so that gradients accumulate; what `forward` makes of the network, wrapped or not.
Outcome run(const std::function<Tensor(UserNet&, const Wrap&)>& forward, const Wrap& wrap) {
  UserNet net;
  torch::manual_seed(7);
  Outcome outcome;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    const Tensor loss = forward(net, wrap);
    loss.backward();
    outcome.loss += loss.item<double>();
  }
  for (const Tensor& parameter : net.parameters()) outcome.gradients.push_back(parameter.grad());
  outcome.random_state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  return outcome;
}

void expect_same_bits(const std::function<Tensor(UserNet&, const Wrap&)>& forward) {
  const Outcome plain = run(forward, kPlain), recomputed = run(forward, kRecomputed);
  EXPECT_EQ(recomputed.loss, plain.loss);
  EXPECT_TRUE(at::equal(recomputed.random_state, plain.random_state)) << "the generator went on differently";
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    ASSERT_EQ(recomputed.gradients[i].defined(), plain.gradients[i].defined()) << i;
    if (plain.gradients[i].defined()) EXPECT_TRUE(at::equal(recomputed.gradients[i], plain.gradients[i])) << i;
  }
}

const Tensor kTokens = at::arange(12, at::kLong).view({3, 4});

// REC-01: recomputation on and off, with dropout: the same bits, and the generator in the same state after it.
TEST(Recompute, SegmentsOfAUsersModuleHaveTheBitsOfNone) {
  expect_same_bits([](UserNet& net, const Wrap& wrap) {
    const SegmentFunction layer = [&](const Tensors& in) { return net.layer(in[0]); };
    const Tensors once = wrap(layer, {net.embedding(kTokens)});
    const Tensors twice = wrap(layer, {once[0]});  // the same parameters in two segments
    return (twice[0].square().sum() + twice[1].sum() + once[1].sum()) / 12;
  });
}

TEST(Recompute, InputsNeedNotRequireGradientsNorBeDefined) {
  expect_same_bits([](UserNet& net, const Wrap& wrap) {
    const SegmentFunction whole = [&](const Tensors& in) {
      EXPECT_FALSE(in[2].defined());
      return net.layer(net.embedding(in[0]) * in[1]);
    };
    return wrap(whole, {kTokens, at::full({8}, 0.5), Tensor()})[0].square().sum();
  });
}

TEST(Recompute, OutputsMayBeUnusedOrConstantOrAnInput) {
  expect_same_bits([](UserNet& net, const Wrap& wrap) {
    const SegmentFunction segment = [&](const Tensors& in) {
      Tensors out = net.layer(in[0]);
      out.push_back(net.second(in[0]));  // used by no one: `second` gets its gradient from the layer alone
      out.push_back(in[0].argmax(-1));   // no gradient
      out.push_back(in[0]);
      out.push_back(in[0] * 2);
      return out;
    };
    const Tensors out = wrap(segment, {net.embedding(kTokens)});
    EXPECT_FALSE(out[3].requires_grad());
    return (out[0] * out[3].unsqueeze(-1) + out[4]).sum();
  });
}

TEST(Recompute, ParametersOfUnusedOutputsKeepUndefinedGradients) {
  expect_same_bits([](UserNet& net, const Wrap& wrap) {
    const SegmentFunction segment = [&](const Tensors& in) { return Tensors{net.first(in[0]), net.second(in[0])}; };
    return wrap(segment, {net.embedding(kTokens)})[0].sum();
  });
}

TEST(Recompute, SegmentsMayContainSegments) {
  expect_same_bits([](UserNet& net, const Wrap& wrap) {
    const SegmentFunction innermost = [](const Tensors& in) {
      return Tensors{torch::dropout(in[0].tanh(), 0.2, true)};
    };
    const SegmentFunction inner = [&net, &wrap, innermost](const Tensors& in) {
      return net.layer(wrap(innermost, in)[0]);
    };
    const SegmentFunction outer = [&net, &wrap, innermost, inner](const Tensors& in) {
      return wrap(innermost, {wrap(inner, {net.embedding(in[0])})[0] * 3});
    };
    return wrap(outer, {kTokens})[0].square().sum();
  });
}

// Autocast is on for the forward alone, as users do it, and bf16 rounds: without it the second run would be exact.
TEST(Recompute, RunsAgainUnderTheSameAutocast) {
  expect_same_bits([](UserNet& net, const Wrap& wrap) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensors once = wrap([&](const Tensors& in) { return net.layer(in[0]); }, {net.embedding(kTokens)});
    const Tensors twice = wrap([&](const Tensors& in) { return net.layer(in[0]); }, {once[0]});
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(net.first(once[0].to(at::kFloat)).scalar_type(), at::kFloat);
    return twice[0].to(at::kFloat).square().sum();
  });
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Recompute, GradientsCanBeAskedForInsteadOfAccumulated) {
  UserNet net;
  net.eval();
  const SegmentFunction layer = [&](const Tensors& in) { return net.layer(in[0]); };
  const auto gradients = [&](const Wrap& wrap) {
    const Tensor loss = wrap(layer, wrap(layer, {net.embedding(kTokens)}))[0].square().sum();
    return torch::autograd::grad({loss}, net.parameters());
  };
  const Tensors plain = gradients(kPlain), recomputed = gradients(kRecomputed);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], recomputed[i])) << i;
  for (const Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

class CountingHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CountingHook(int& calls) : calls_(calls) {}
  void operator()(const Tensor&) override { ++calls_; }

 private:
  int& calls_;
};

// What reduces gradients over ranks counts on it: one call when the gradient is whole, also for shared parameters.
TEST(Recompute, HooksOfParametersRunOncePerBackward) {
  UserNet net;
  int calls = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(net.first->weight, std::make_unique<CountingHook>(calls));
  const SegmentFunction layer = [&](const Tensors& in) { return net.layer(in[0]); };
  recompute(layer, {recompute(layer, {net.embedding(kTokens)})[0]})[0].sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(Recompute, RunsOnceMorePerBackwardAndTellsWhen) {
  UserNet net;
  int runs = 0, begun = 0, open = 0;
  const SegmentFunction layer = [&](const Tensors& in) {
    ++runs;
    EXPECT_EQ(open, runs - 1) << "announced while it runs again, and not in the forward pass";
    return net.layer(in[0]);
  };
  const BeginRerun begin = [&] {
    ++begun;
    ++open;
    return std::shared_ptr<void>(&open, [](int* count) { --*count; });
  };
  const Tensor loss = recompute(layer, {net.embedding(kTokens)}, begin)[0].sum();
  EXPECT_EQ(runs, 1);
  loss.backward();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(open, 0);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(
      recompute([&](const Tensors& in) { return net.layer(in[0]); }, {net.embedding(kTokens)})[0].requires_grad());
}

template <class Type, class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Type& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Recompute, RefusesWhatWouldGiveWrongGradients) {
  UserNet net;
  const Tensor hidden = net.embedding(kTokens);
  EXPECT_THAT(refusal<InvalidArgument>(
                  [&] { recompute([&](const Tensors& in) { return Tensors{in[0] + hidden}; }, {hidden.detach()}); }),
              ::testing::HasSubstr("is not among its inputs: pass it as an input"));
  EXPECT_THAT(refusal<InvalidArgument>([&] {
                recompute([&](const Tensors& in) { return Tensors{net.first(in[0].mul_(2))}; }, {at::ones({2, 8})});
              }),
              ::testing::HasSubstr("changed an input in place"));
  const Tensor x = at::ones({2, 8}).requires_grad_();
  const Tensor loss = recompute([&](const Tensors& in) { return Tensors{net.first(in[0]).square()}; }, {x})[0].sum();
  EXPECT_THAT(refusal<Unsupported>(
                  [&] { torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); }),
              ::testing::HasSubstr("a gradient of a gradient"));
}

// An error of the function reaches the caller of backward, and the generator goes on from where it was.
TEST(Recompute, AnErrorInTheSecondRunLeavesTheGeneratorAlone) {
  UserNet net;
  int runs = 0;
  const SegmentFunction failing = [&](const Tensors& in) {
    if (++runs == 2) throw Error("out of luck");
    return net.layer(in[0]);
  };
  const Tensor loss = recompute(failing, {net.embedding(kTokens)})[0].sum();
  const Tensor before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  EXPECT_EQ(refusal<Error>([&] { loss.backward(); }), "out of luck");
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), before));
}

}  // namespace
}  // namespace lockstep::nn
