#include "lockstep/data/batch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

spec::RunPlan small_plan() {
  spec::RunPlan plan;
  plan.model.vocab = 1000;
  plan.model.sequence = 8;
  plan.data.format = spec::DataFormat::synthetic;
  plan.train.global_batch = 6;
  plan.train.microbatch = 2;
  return plan;
}

TEST(Batches, TargetsAreTheTokensThatFollow) {
  const Batches batches(small_plan());
  const Batch batch = batches.train(0, 1);
  EXPECT_EQ(batch.tokens_BS.sizes(), (std::vector<int64_t>{2, 8}));
  EXPECT_EQ(batch.tokens_BS.scalar_type(), torch::kLong);
  EXPECT_TRUE(torch::equal(batch.tokens_BS.slice(1, 1), batch.targets_BS.slice(1, 0, 7)));
}

TEST(Batches, AGlobalBatchIsTheSameHoweverItIsCut) {
  const auto whole = [](int64_t microbatch) {
    spec::RunPlan plan = small_plan();
    plan.train.microbatch = microbatch;
    const Batches batches(plan);
    std::vector<at::Tensor> parts;
    for (int64_t m = 0; m < 6 / microbatch; ++m) {
      const Batch batch = batches.train(3, m);
      parts.push_back(torch::stack({batch.tokens_BS, batch.targets_BS}, 1));
    }
    return torch::cat(parts);
  };
  const at::Tensor expected = whole(6);
  for (const int64_t microbatch : {1, 2, 3}) EXPECT_TRUE(torch::equal(whole(microbatch), expected)) << microbatch;
}

TEST(Batches, ValidationCountsEverySequenceOnceAndFillsUpWithIgnoredTargets) {
  spec::RunPlan plan = small_plan();
  plan.data.validation_fraction = 81.0 / (1 << 24);  // 10 sequences of 8 and one token
  plan.run.validation_batches = 0;
  const Batches batches(plan);
  ASSERT_EQ(batches.validation_batches(), 2);
  int64_t valid = 0;
  std::vector<at::Tensor> tokens;
  for (int64_t batch = 0; batch < 2; ++batch) {
    for (int64_t microbatch = 0; microbatch < 3; ++microbatch) {
      const Batch part = batches.validation(batch, microbatch);
      EXPECT_EQ(part.tokens_BS.sizes(), (std::vector<int64_t>{2, 8}));
      valid += part.targets_BS.ne(kIgnoredTarget).sum().item<int64_t>();
      tokens.push_back(part.tokens_BS);
    }
  }
  EXPECT_EQ(valid, 80);
  std::vector<int64_t> expected(80);
  Corpus(plan).read((1 << 24) - 81, expected);
  EXPECT_TRUE(torch::equal(torch::cat(tokens).flatten().slice(0, 0, 80), torch::tensor(expected)));
}

TEST(Batches, ValidationStopsAtTheConfiguredNumber) {
  spec::RunPlan plan = small_plan();
  plan.run.validation_batches = 3;
  EXPECT_EQ(Batches(plan).validation_batches(), 3);
  plan.data.validation_fraction = 0;
  EXPECT_EQ(Batches(plan).validation_batches(), 0);
}

TEST(Batches, SaysWhatItReads) {
  EXPECT_EQ(Batches(small_plan()).describe(),
            "16777216 synthetic tokens: 1992294 training and 104857 validation sequences of 8");
}

}  // namespace
}  // namespace lockstep::data
