#include "lockstep/cost/memory.h"

#include <gtest/gtest.h>

#include <array>

#include "lockstep/spec/layout.h"

namespace lockstep::cost {
namespace {

double gigabytes(double parameters, const StateTypes& types, int64_t stage, double ranks) {
  return state_bytes(parameters, types, stage, ranks).total() / 1e9;
}

// "ZeRO" (arXiv 1910.02054), figure 1 and table 1: GB of a rank's states, by ranks: stages 0, 1, 2, 3.
TEST(StateBytes, AreThoseOfTheZeroPaper) {
  struct Row {
    double billions, ranks;
    std::array<double, 4> by_stage;
  };
  for (const Row& row : {Row{7.5, 1, {120, 120, 120, 120}}, Row{7.5, 4, {120, 52.5, 41.25, 30}},
                         Row{7.5, 16, {120, 35.62, 21.56, 7.5}}, Row{7.5, 64, {120, 31.41, 16.64, 1.875}},
                         Row{7.5, 1024, {120, 30.09, 15.1, 0.117}}, Row{128, 16, {2048, 608, 368, 128}},
                         Row{128, 256, {2048, 518, 263, 8}}, Row{1000, 64, {16000, 4187.5, 2218.75, 250}}}) {
    for (int64_t stage = 0; stage <= 3; ++stage) {
      const double expected = row.by_stage[static_cast<size_t>(stage)];
      EXPECT_NEAR(gigabytes(row.billions * 1e9, kLowWithModelGradients, stage, row.ranks), expected, 0.006) << stage;
    }
  }
}

TEST(StateBytes, DivideWhatTheStageSharesForEveryKindOfNumbers) {
  constexpr double kParameters = 3e6, kRanks = 5, kP = kParameters, kShare = kParameters / kRanks;
  const auto total = [](const StateTypes& types, int64_t stage) {
    return state_bytes(kParameters, types, stage, kRanks).total();
  };
  EXPECT_DOUBLE_EQ(total(kFp32, 0), 16 * kP);
  EXPECT_DOUBLE_EQ(total(kFp32, 1), 8 * kP + 8 * kShare);
  EXPECT_DOUBLE_EQ(total(kFp32, 2), 4 * kP + 12 * kShare);
  EXPECT_DOUBLE_EQ(total(kFp32, 3), 16 * kShare);
  EXPECT_DOUBLE_EQ(total(kLowWithFp32Gradients, 0), 18 * kP);
  EXPECT_DOUBLE_EQ(total(kLowWithFp32Gradients, 1), 6 * kP + 12 * kShare);
  EXPECT_DOUBLE_EQ(total(kLowWithFp32Gradients, 2), 2 * kP + 16 * kShare);
  EXPECT_DOUBLE_EQ(total(kLowWithFp32Gradients, 3), 18 * kShare);
}

// "CS336 Lecture 8", "ZeRO": 13B parameters on 4 cards.
TEST(StateBytes, OfTheDocumentsExample) {
  constexpr double kParameters = 13e9;
  EXPECT_DOUBLE_EQ(gigabytes(kParameters, kLowWithModelGradients, 0, 4), 208);
  EXPECT_DOUBLE_EQ(gigabytes(kParameters, kLowWithModelGradients, 1, 4), 91);
  EXPECT_DOUBLE_EQ(gigabytes(kParameters, kLowWithModelGradients, 2, 4), 71.5);
  EXPECT_DOUBLE_EQ(gigabytes(kParameters, kLowWithModelGradients, 3, 4), 52);
  EXPECT_DOUBLE_EQ(kParameters * 2 / 4 / 1e9, 6.5);  // "gradients from 26 GB to 6.5 GB"
  // "Adam's states from 104 GB to 26 GB": m and v alone, where the formula 4P + 12P/p shares the master weights too.
  EXPECT_DOUBLE_EQ(kParameters * 8 / 1e9, 104);
  EXPECT_DOUBLE_EQ(state_bytes(kParameters, kLowWithModelGradients, 1, 4).optimizer / 1e9, 39);
}

spec::RunPlan plan_of(std::string_view layout) {
  spec::RunPlan plan;
  plan.model.layers = 4;
  plan.model.hidden = 64;
  plan.model.ffn_hidden = 256;
  plan.train.global_batch = 8;
  plan.train.microbatch = 2;
  plan.parallel.bucket_mb = 0.01;
  return spec::apply(spec::parse_layout(layout), plan);
}

TEST(MemoryLedger, AddsWhatShardingLends) {
  const auto parameters = static_cast<double>(spec::parameter_count(plan_of("single").model));
  const double block = 4 * 12.0 * 64 * 64;  // at least, of fp32
  const MemoryLedger whole = memory_ledger(plan_of("dp4"), 4);
  EXPECT_DOUBLE_EQ(whole.total(), 16 * parameters);
  const MemoryLedger layer = memory_ledger(plan_of("dp4-zero3"), 4);
  EXPECT_DOUBLE_EQ(layer.states.total(), 4 * parameters);
  EXPECT_GE(layer.gathered, 2 * block);
  EXPECT_LE(layer.gathered, 2.2 * block);
  EXPECT_GE(layer.flats, 2 * block);
  EXPECT_DOUBLE_EQ(layer.held_gradients, 0);
  spec::RunPlan plan = plan_of("dp4-zero3");
  plan.parallel.gather = spec::Gather::stage;
  EXPECT_DOUBLE_EQ(memory_ledger(plan, 4).gathered, 4 * parameters);
  // Hybrid: shared by two.
  EXPECT_DOUBLE_EQ(memory_ledger(plan_of("dp4-zero3g2"), 4).states.total(), 8 * parameters);
}

// The plan's precision and type of gradients decide what a number takes, states and lent alike.
TEST(MemoryLedger, IsOfThePlansTypes) {
  const auto parameters = static_cast<double>(spec::parameter_count(plan_of("single").model));
  const MemoryLedger fp32 = memory_ledger(plan_of("dp4-zero3"), 4);
  for (const char* precision : {"bf16", "fp16"}) {
    for (const int64_t stage : {0, 1, 2, 3}) {
      const std::string layout = stage == 0 ? text("dp4-", precision) : text("dp4-zero", stage, "-", precision);
      spec::RunPlan plan = plan_of(layout);
      const StateBytes wide = memory_ledger(plan, 4).states;
      EXPECT_DOUBLE_EQ(wide.total(), state_bytes(parameters, kLowWithFp32Gradients, stage, 4).total()) << layout;
      plan.train.gradient_dtype = spec::GradientDtype::model;
      const MemoryLedger narrow = memory_ledger(plan, 4);
      EXPECT_DOUBLE_EQ(narrow.states.total(), state_bytes(parameters, kLowWithModelGradients, stage, 4).total());
      if (stage == 3) EXPECT_DOUBLE_EQ(narrow.gathered, fp32.gathered / 2);
      if (stage == 3) EXPECT_DOUBLE_EQ(narrow.flats, fp32.flats / 2);
      plan.train.optimizer = spec::OptimizerKind::sgd;  // masters, and one moment instead of two
      EXPECT_DOUBLE_EQ(memory_ledger(plan, 4).states.optimizer, 8 * parameters / (stage == 0 ? 1 : 4));
    }
  }
}

// ZERO-08: whole gradients between micro-batches, or shards; in fp32 whatever the weights are.
TEST(MemoryLedger, ReportsWhatAccumulationHolds) {
  for (const char* layout : {"dp2-zero2-acc4", "dp2-zero3-acc4", "dp2-zero2-acc4-bf16", "dp2-zero3-acc4-fp16"}) {
    spec::RunPlan plan = plan_of(layout);
    const auto parameters = static_cast<double>(spec::parameter_count(plan.model));
    const MemoryLedger deferred = memory_ledger(plan, 2);
    EXPECT_DOUBLE_EQ(deferred.held_gradients, 4 * parameters);
    EXPECT_DOUBLE_EQ(deferred.flats, 0);
    plan.parallel.gradient_reduction = spec::GradientReduction::immediate;
    const MemoryLedger immediate = memory_ledger(plan, 2);
    EXPECT_DOUBLE_EQ(immediate.held_gradients, 0);
    EXPECT_DOUBLE_EQ(immediate.states.gradients, 4 * parameters / 2);
    EXPECT_GT(immediate.flats, 0);
    EXPECT_LT(immediate.flats, 4 * parameters);
  }
}

}  // namespace
}  // namespace lockstep::cost
