#include "lockstep/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

namespace lockstep::optim {
namespace {

using at::Tensor;

std::vector<Parameter> two_parameters(at::ScalarType dtype) {
  torch::manual_seed(1);
  return {{"matrix", at::randn({3, 5}, dtype), /*decay=*/true}, {"bias", at::randn({7}, dtype), /*decay=*/false}};
}

void set_random_gradients(std::vector<Parameter>& parameters) {
  for (Parameter& parameter : parameters) parameter.tensor.mutable_grad() = at::randn_like(parameter.tensor);
}

Tensor state_of(const Optimizer& optimizer, const std::string& parameter, const std::string& name) {
  for (const State& state : optimizer.state()) {
    if (state.parameter == parameter && state.name == name) return state.tensor;
  }
  return {};
}

// The update as its paper writes it.
class NaiveAdamW {
 public:
  NaiveAdamW(const Tensor& x, AdamWOptions options)
      : x_(x.clone()), m_(at::zeros_like(x)), v_(m_.clone()), o_(options) {}
  void step(const Tensor& gradient, double lr, double weight_decay) {
    ++t_;
    x_ = x_ * (1 - lr * weight_decay);
    m_ = o_.beta1 * m_ + (1 - o_.beta1) * gradient;
    v_ = o_.beta2 * v_ + (1 - o_.beta2) * gradient * gradient;
    const Tensor m_hat = m_ / (1 - std::pow(o_.beta1, t_)), v_hat = v_ / (1 - std::pow(o_.beta2, t_));
    x_ = x_ - lr * m_hat / (v_hat.sqrt() + o_.eps);
  }
  Tensor x_, m_, v_;

 private:
  AdamWOptions o_;
  int t_ = 0;
};

TEST(AdamW, IsItsDefinitionWithDecayGroups) {
  const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3};
  std::vector<Parameter> parameters = two_parameters(at::kDouble);
  std::vector<NaiveAdamW> naive;
  for (const Parameter& parameter : parameters) naive.emplace_back(parameter.tensor, options);
  const auto optimizer = make_adamw(parameters, options);
  for (int step = 0; step < 10; ++step) {
    const double lr = 0.01 * (step + 1);
    set_random_gradients(parameters);
    optimizer->step(lr);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      naive[i].step(parameter.tensor.grad(), lr, parameter.decay ? options.weight_decay : 0);
      EXPECT_TRUE(at::allclose(parameter.tensor, naive[i].x_, 0, 1e-12)) << parameter.name << " step " << step;
      EXPECT_TRUE(at::allclose(state_of(*optimizer, parameter.name, "exp_avg"), naive[i].m_, 0, 1e-12));
      EXPECT_TRUE(at::allclose(state_of(*optimizer, parameter.name, "exp_avg_sq"), naive[i].v_, 0, 1e-12));
    }
  }
}

TEST(Sgd, IsTheOneOfTorch) {
  for (const double momentum : {0.0, 0.9}) {
    std::vector<Parameter> ours = two_parameters(at::kDouble), theirs = two_parameters(at::kDouble);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const Parameter& parameter : theirs) {
      auto group_options = torch::optim::SGDOptions(0.05).momentum(momentum).weight_decay(parameter.decay ? 0.2 : 0);
      groups.emplace_back(std::vector<Tensor>{parameter.tensor},
                          std::make_unique<torch::optim::SGDOptions>(group_options));
    }
    torch::optim::SGD reference(std::move(groups), torch::optim::SGDOptions(0.05));
    const auto optimizer = make_sgd(ours, {.momentum = momentum, .weight_decay = 0.2});
    for (int step = 0; step < 5; ++step) {
      set_random_gradients(ours);
      for (size_t i = 0; i < ours.size(); ++i) theirs[i].tensor.mutable_grad() = ours[i].tensor.grad().clone();
      optimizer->step(0.05);
      reference.step();
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(at::allclose(ours[i].tensor, theirs[i].tensor, 0, 1e-13)) << ours[i].name << " " << momentum;
      }
    }
  }
}

class AnyOptimizer : public testing::TestWithParam<spec::OptimizerKind> {
 protected:
  std::unique_ptr<Optimizer> make(const std::vector<Parameter>& parameters) {
    return make_optimizer({.optimizer = GetParam()}, parameters);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, AnyOptimizer, testing::Values(spec::OptimizerKind::adamw, spec::OptimizerKind::sgd),
                         [](const auto& info) { return info.param == spec::OptimizerKind::adamw ? "adamw" : "sgd"; });

TEST_P(AnyOptimizer, ParametersWithoutGradientKeepValueAndState) {
  std::vector<Parameter> parameters = two_parameters(at::kFloat);
  const auto optimizer = make(parameters);
  set_random_gradients(parameters);
  optimizer->step(0.1);
  parameters[0].tensor.mutable_grad().reset();
  std::vector<Tensor> before = {parameters[0].tensor.clone()}, after = {parameters[0].tensor};
  for (const State& state : optimizer->state()) {
    if (state.parameter != "matrix") continue;
    before.push_back(state.tensor.clone());
    after.push_back(state.tensor);
  }
  const Tensor bias = parameters[1].tensor.clone();
  optimizer->step(0.1);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  EXPECT_FALSE(at::equal(parameters[1].tensor, bias));
}

TEST_P(AnyOptimizer, CopiedStateContinuesExactly) {
  std::vector<Parameter> parameters = two_parameters(at::kFloat);
  const auto optimizer = make(parameters);
  set_random_gradients(parameters);
  optimizer->step(0.1);

  std::vector<Parameter> copies;
  for (const Parameter& parameter : parameters) {
    copies.push_back({parameter.name, parameter.tensor.clone(), parameter.decay});
  }
  const auto resumed = make(copies);
  const std::vector<State> from = optimizer->state(), to = resumed->state();
  for (size_t i = 0; i < from.size(); ++i) State(to[i]).tensor.copy_(from[i].tensor);
  set_random_gradients(parameters);
  for (size_t i = 0; i < copies.size(); ++i) copies[i].tensor.mutable_grad() = parameters[i].tensor.grad();
  optimizer->step(0.1);
  resumed->step(0.1);
  for (size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(at::equal(copies[i].tensor, parameters[i].tensor));
}

}  // namespace
}  // namespace lockstep::optim
