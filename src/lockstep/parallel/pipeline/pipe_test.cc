#include "lockstep/parallel/pipeline/pipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kWidth = 12;

at::Tensor numbers(int64_t rows, uint64_t seed) {
  return torch::randn({rows, kWidth}, at::detail::createCPUGenerator(seed), torch::kDouble);
}

torch::nn::Sequential block() {
  torch::nn::Sequential layers(torch::nn::Linear(kWidth, 2 * kWidth), torch::nn::GELU(),
                               torch::nn::Linear(2 * kWidth, kWidth));
  layers->to(torch::kDouble);
  return layers;
}

// Stages, and the same modules to be called one after the other.
struct Model {
  explicit Model(int stages) {
    torch::manual_seed(5);
    for (int i = 0; i < stages; ++i) blocks.push_back(block());
  }
  std::vector<PipelineStage> stages() const {
    std::vector<PipelineStage> result;
    for (const auto& each : blocks) result.push_back(stage_of(each));
    return result;
  }
  at::Tensor in_sequence(at::Tensor x) {
    for (auto& each : blocks) x = each->forward(x);
    return x;
  }
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> gradients;
    for (auto& each : blocks) {
      for (const auto& parameter : each->parameters()) gradients.push_back(parameter.grad().clone());
      each->zero_grad();
    }
    return gradients;
  }
  std::vector<torch::nn::Sequential> blocks;
};

// A stage that is a function without parameters.
PipelineStage function_stage(std::function<at::Tensor(const at::Tensor&)> function) {
  return {nullptr, std::move(function)};
}

std::vector<std::string> calls_of_forward(int stages, int microbatches) {
  std::vector<std::string> calls;
  Model model(stages);
  Pipe pipe(model.stages(),
            {.microbatches = microbatches, .on_call = [&](const WorkerCall& call) {
               calls.push_back(text(call.kind == WorkerCall::Kind::submit ? "submit " : "receive ", call.stage));
             }});
  pipe.forward(numbers(microbatches, 1));
  return calls;
}

TEST(Pipe, SubmitsAWholeWaveThenReceivesInTheSameOrder) {
  EXPECT_THAT(calls_of_forward(3, 3),
              ElementsAre("submit 0", "receive 0",                                                    // wave 0
                          "submit 0", "submit 1", "receive 0", "receive 1",                           // wave 1
                          "submit 0", "submit 1", "submit 2", "receive 0", "receive 1", "receive 2",  // wave 2
                          "submit 1", "submit 2", "receive 1", "receive 2", "submit 2", "receive 2"));
  EXPECT_THAT(calls_of_forward(2, 1), ElementsAre("submit 0", "receive 0", "submit 1", "receive 1"));
}

TEST(Pipe, ForwardIsThatOfTheSequenceBitForBitAndGradientsAreEqual) {
  at::set_num_threads(1);
  for (const int stages : {1, 2, 3, 4}) {
    for (const int64_t split_size : {1, 3, 4, 10, 16}) {
      Model model(stages);
      const at::Tensor x = numbers(10, 2), target = numbers(10, 3);
      std::vector<at::Tensor> parts = x.split(split_size);
      for (at::Tensor& part : parts) part = model.in_sequence(part);
      torch::mse_loss(model.in_sequence(x), target).backward();
      const std::vector<at::Tensor> expected = model.take_gradients();

      Pipe pipe(model.stages(), {.split_size = split_size});
      const at::Tensor output = pipe.forward(x);
      EXPECT_TRUE(output.equal(at::cat(parts))) << stages << " stages, micro-batches of " << split_size;
      torch::mse_loss(output, target).backward();
      const std::vector<at::Tensor> gradients = model.take_gradients();
      ASSERT_EQ(gradients.size(), expected.size());
      for (size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_LE((gradients[i] - expected[i]).abs().max().item<double>(),
                  1e-10 * expected[i].abs().max().item<double>());
      }
    }
  }
}

TEST(Pipe, EveryStageSeesTheSameMicrobatches) {
  for (const bool by_count : {true, false}) {
    std::vector<std::vector<int64_t>> rows(2);
    std::vector<PipelineStage> stages;
    for (auto& seen : rows) {
      stages.push_back(function_stage([&seen](const at::Tensor& x) {
        seen.push_back(x.size(0));
        return x + 1;
      }));
    }
    Pipe pipe(std::move(stages), by_count ? PipeOptions{.microbatches = 3} : PipeOptions{.split_size = 3});
    EXPECT_TRUE(pipe.forward(numbers(8, 1)).equal(numbers(8, 1) + 1 + 1));
    for (const auto& seen : rows) EXPECT_THAT(seen, ElementsAre(3, 3, 2));
  }
}

TEST(Pipe, StagesOfAWaveWorkAtTheSameTime) {
  std::atomic<int> inside = 0;
  const auto meet = [&](const at::Tensor& x) {
    if (x.item<double>() >= 0) {  // all but micro-batch 0 on stage 0, which is in a wave alone
      ++inside;
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (inside < 2 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
      EXPECT_GE(inside, 2);  // wave 1 ends only if both stages are in it together
    }
    return x + 1;
  };
  Pipe pipe({function_stage(meet), function_stage(meet)}, {.split_size = 1});
  EXPECT_TRUE(pipe.forward(torch::tensor({-1.0, 0.0})).equal(torch::tensor({1.0, 2.0})));
}

TEST(Pipe, WorkersHaveTheCallersGradientModeAndThreads) {
  std::vector<bool> gradient(2), inference(2);
  std::vector<int> threads(2);
  std::vector<PipelineStage> stages;
  for (size_t i = 0; i < 2; ++i) {
    stages.push_back(function_stage([&, i](const at::Tensor& x) {
      gradient[i] = at::GradMode::is_enabled();
      inference[i] = c10::InferenceMode::is_enabled();
      threads[i] = at::get_num_threads();
      return x * 2;
    }));
  }
  Pipe pipe(std::move(stages), {.microbatches = 1});
  const at::Tensor x = numbers(1, 1).requires_grad_();
  for (const int count : {1, 2, 1}) {
    at::set_num_threads(count);
    EXPECT_TRUE(pipe.forward(x).requires_grad());
    EXPECT_THAT(gradient, ElementsAre(true, true));
    EXPECT_THAT(threads, ElementsAre(count, count));
  }
  {
    const torch::NoGradGuard no_grad;
    const at::Tensor y = pipe.forward(x);
    EXPECT_FALSE(y.requires_grad());
    EXPECT_THAT(gradient, ElementsAre(false, false));
  }
  const c10::InferenceMode guard;
  EXPECT_TRUE(pipe.forward(x).is_inference());
  EXPECT_THAT(inference, ElementsAre(true, true));
}

struct Misfortune : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(Pipe, WhatAStageThrowsComesOutUnchangedAndThePipeGoesOn) {
  bool first_fails = false, second_fails = true;
  Model model(2);
  std::vector<PipelineStage> stages = model.stages();
  const auto failing = [](PipelineStage stage, const bool& fails, const char* message) {
    return function_stage([stage, &fails, message](const at::Tensor& x) {
      if (fails) throw Misfortune(message);
      return stage.run(x);
    });
  };
  Pipe pipe({failing(stages[0], first_fails, "in the first"), failing(stages[1], second_fails, "in the second")},
            {.microbatches = 3});
  const auto forward = [&] { pipe.forward(numbers(6, 1)); };
  EXPECT_THAT(forward, ThrowsMessage<Misfortune>("in the second"));
  first_fails = true;
  EXPECT_THAT(forward, ThrowsMessage<Misfortune>("in the first"));
  first_fails = second_fails = false;
  // Nothing of the waves that failed is left in the workers.
  EXPECT_TRUE(at::allclose(pipe.forward(numbers(6, 2)), model.in_sequence(numbers(6, 2)), 1e-12, 1e-12));
  EXPECT_THROW(pipe.forward(torch::ones({6, kWidth + 1}, torch::kDouble)), c10::Error);  // torch's own, as it is
}

TEST(Pipe, TakesABatchWithoutRowsAndOneSmallerThanAMicrobatch) {
  Model model(2);
  Pipe pipe(model.stages(), {.split_size = 4});
  EXPECT_EQ(pipe.forward(numbers(0, 1)).sizes(), (std::vector<int64_t>{0, kWidth}));
  EXPECT_TRUE(pipe.forward(numbers(3, 1)).equal(model.in_sequence(numbers(3, 1))));
}

TEST(Pipe, RefusesWhatCannotBeAPipeline) {
  Model model(2);
  const auto make = [&](std::vector<PipelineStage> stages, const PipeOptions& options) {
    return [=] { Pipe(stages, options); };
  };
  EXPECT_THAT(make({}, {.split_size = 4}),
              ThrowsMessage<InvalidArgument>("stages = 0: must be at least 1 (nearest: 1)"));
  EXPECT_THAT(make({stage_of(model.blocks[0]), PipelineStage{}}, {.split_size = 4}),
              ThrowsMessage<InvalidArgument>(HasSubstr("stage 1: has no forward function")));
  for (const PipeOptions& options :
       {PipeOptions{}, PipeOptions{.split_size = 2, .microbatches = 2}, PipeOptions{.split_size = -1}}) {
    EXPECT_THAT(make(model.stages(), options), ThrowsMessage<InvalidArgument>(HasSubstr("one of them must be")));
  }
  Pipe pipe(model.stages(), {.microbatches = 4});
  EXPECT_THAT([&] { pipe.forward(numbers(3, 1)); },
              ThrowsMessage<InvalidArgument>(
                  "microbatches = 4: every micro-batch needs a row, and the batch has 3 (nearest: 3)"));
  EXPECT_THAT([&] { pipe.forward(torch::ones({})); }, ThrowsMessage<InvalidArgument>(HasSubstr("is a scalar")));
}

}  // namespace
}  // namespace lockstep::parallel
