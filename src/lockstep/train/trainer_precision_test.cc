// Low precision in training: master weights, gradients in fp32, the loss scale. Layouts are compared with the plain
// loop of the same precision, which has the same micro-batches, so the same rounding up to the order of additions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>

#include "lockstep/checkpoint/weights.h"
#include "lockstep/spec/names.h"
#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

using spec::GradientDtype, spec::Precision;

spec::RunPlan low_plan(Precision precision) {
  spec::RunPlan plan = small_plan();
  plan.train.precision = precision;
  plan.train.microbatch = 2;
  plan.train.steps = 3;
  plan.train.lr = 1e-3;
  return plan;
}

// The gradients of the first step are of equal weights: fp32 sums of the same numbers in another order. In later steps
// a weight may be rounded the other way, which its own type shows as 2^-8 (bf16) or 2^-11 (fp16) of it.
TEST(LowPrecision, LayoutsEqualThePlainLoopOfTheSamePrecision) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    for (const GradientDtype dtype : {GradientDtype::fp32, GradientDtype::model}) {
      spec::RunPlan plan = low_plan(precision);
      plan.train.gradient_dtype = dtype;
      const RunRecord reference = reference_of(plan);
      for (const int ranks : {1, 2, 3}) {
        const std::string what = text(spec::name(precision), ", gradients ", spec::name(dtype), ", ranks ", ranks);
        for (const Outcome& rank : run(plan, ranks)) {
          RunRecord first = rank.record, expected = reference;
          first.steps.resize(1);
          expected.steps.resize(1);
          EXPECT_LE(compare(expected, first).max_rel_grad, dtype == GradientDtype::fp32 ? 1e-5 : 2e-2) << what;
          EXPECT_LE(compare(reference, rank.record).max_rel_loss, 2e-2) << what;
          if (ranks == 1) EXPECT_TRUE(compare(reference, rank.record).bitwise) << what;
        }
      }
    }
  }
}

TEST(LowPrecision, FixedTreeGivesTheSameBitsOn1And2And4Ranks) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    spec::RunPlan plan = low_plan(precision);
    plan.parallel.reduction = spec::Reduction::fixed_tree;
    const RunRecord reference = reference_of(plan);
    for (const int ranks : {1, 2, 4}) {
      for (const Outcome& rank : run(plan, ranks))
        EXPECT_TRUE(compare(reference, rank.record).bitwise) << spec::name(precision) << " on " << ranks << " ranks";
    }
  }
}

// What is trained is fp32: the model's weights are its rounding, and so is what fp32 alone would have given, nearly.
TEST(LowPrecision, MastersAreFp32AndTheModelTheirRounding) {
  const spec::RunPlan plan = low_plan(Precision::bf16);
  comm::run_ranks(1, {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, world);
    for (int step = 0; step < 3; ++step) trainer.step();
    bool finer = false;
    for (size_t i = 0; i < trainer.masters().size(); ++i) {
      const at::Tensor& master = trainer.masters()[i].tensor;
      const at::Tensor weight = trainer.model().parameter_list()[i].tensor.detach();
      EXPECT_EQ(master.scalar_type(), at::kFloat);
      EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(weight, master.to(at::kBFloat16))) << trainer.masters()[i].spec.name;
      finer = finer || !at::equal(weight.to(at::kFloat), master);
    }
    EXPECT_TRUE(finer);
  });
}

// MP-02: ranks that begin with other scales use one, rank 0's, and unscale by it.
TEST(LowPrecision, AllRanksHaveOneLossScale) {
  const spec::RunPlan plan = low_plan(Precision::fp16);
  const auto with_scales = [&](double of_rank_0, double of_rank_1) {
    return run(plan, 2,
               [=](int rank) { return TrainerOptions{.loss_scale = {.initial = rank == 0 ? of_rank_0 : of_rank_1}}; });
  };
  const auto equal = with_scales(4, 4), different = with_scales(4, 2);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const StepReport& report : different[rank].reports) EXPECT_EQ(report.loss_scale, 4);
    EXPECT_TRUE(compare(equal[rank].record, different[rank].record).bitwise) << "rank " << rank;
  }
}

// A power of two changes no bit of a gradient that fp16 can hold, so gradients do not depend on the scale but for those
// too small for it: those that a scale of 1 loses.
TEST(LowPrecision, TheLossScaleKeepsSmallGradients) {
  const spec::RunPlan plan = low_plan(Precision::fp16);
  const auto zeros_with = [&](double scale) {
    const auto outcomes = run(plan, 1, [&](int) { return TrainerOptions{.loss_scale = {.initial = scale}}; });
    int64_t zeros = 0;
    for (const auto& gradient : outcomes[0].record.steps[0].gradients)
      zeros += (gradient.tensor == 0).sum().item<int64_t>();
    return zeros;
  };
  EXPECT_GT(zeros_with(1.0 / 1024), zeros_with(1024) + 100);
}

// MP-03: infinity in one activation of one rank of four, which is late as well: every rank skips, the scale goes from 2
// to 1 everywhere, no bit of a weight changes, and the next step is an update.
TEST(LowPrecision, AnOverflowOnOneRankSkipsTheStepOnAll) {
  spec::RunPlan plan = low_plan(Precision::fp16);
  PoisonedSeams poisoned(static_cast<uint64_t>(plan.train.seed),
                         {.first_step = 0, .last_step = 0, .delay = std::chrono::milliseconds(100)});
  comm::run_ranks(4, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, world,
                    {.seams = world.rank() == 2 ? &poisoned.seams : nullptr, .loss_scale = {.initial = 2}});
    std::vector<at::Tensor> before;
    for (const auto& master : trainer.masters()) before.push_back(master.tensor.clone());
    const StepReport skipped = trainer.step();
    EXPECT_TRUE(skipped.skipped);
    EXPECT_EQ(skipped.loss_scale, 2);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i], trainer.masters()[i].tensor));
      EXPECT_TRUE(at::equal(before[i].to(at::kHalf), trainer.model().parameter_list()[i].tensor));
    }
    const StepReport next = trainer.step();
    EXPECT_FALSE(next.skipped);
    EXPECT_EQ(next.loss_scale, 1);
    EXPECT_EQ(trainer.updates(), 1);
  });
}

// MP-08: warm-up to 1, 2, 3 and a scale that overflows in the first step: the three updates have these rates, and Adam
// has counted three.
TEST(LowPrecision, SchedulesAndCountersStandStillOnASkippedStep) {
  spec::RunPlan plan = low_plan(Precision::fp16);
  plan.train.steps = 4;
  plan.train.lr = 3e-3;
  plan.train.warmup_steps = 3;
  const auto outcomes =
      run(plan, 2, [](int) { return TrainerOptions{.loss_scale = {.initial = 0x1p40, .backoff = 0x1p-30}}; });
  for (const Outcome& rank : outcomes) {
    std::vector<double> rates;
    int skipped = 0;
    for (const StepReport& report : rank.reports) {
      skipped += report.skipped;
      if (!report.skipped) rates.push_back(report.lr);
    }
    EXPECT_TRUE(rank.reports[0].skipped);
    EXPECT_EQ(skipped, 1);
    EXPECT_THAT(
        rates, ::testing::ElementsAre(::testing::DoubleEq(1e-3), ::testing::DoubleEq(2e-3), ::testing::DoubleEq(3e-3)));
    for (const NamedTensor& state : rank.record.state) {
      if (state.name.ends_with("/step")) EXPECT_EQ(state.tensor.item<double>(), 3) << state.name;
    }
  }
}

// OPS-07 in low precision: infinity in every step ends the run with a tensor named.
TEST(LowPrecision, ARunThatOnlySkipsEndsWithTheParameterNamed) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    spec::RunPlan plan = low_plan(precision);
    plan.train.steps = 30;
    PoisonedSeams poisoned(static_cast<uint64_t>(plan.train.seed), {.first_step = 0});
    try {
      run(plan, 2, [&](int) { return TrainerOptions{.seams = &poisoned.seams}; });
      FAIL() << "a run that only skips must end";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("20 steps in a row were skipped"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("weight"));
    }
  }
}

// MP-06: weights without optimizer state, then a step that changes nothing. Masters are the loaded weights to the last
// bit, before and after it, and the model's weights are their rounding.
TEST(LowPrecision, LoadedWeightsAreThoseOfTheMasters) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "loaded_masters";
  spec::RunPlan plan = low_plan(Precision::fp32);
  const auto loaded = build(plan, at::kCPU).masters;
  checkpoint::save_weights(folder, plan.model, loaded);
  plan.train.seed = 99;   // other initial values
  plan.train.lr = 1e-60;  // 0 in fp32
  plan.train.weight_decay = 0;
  plan.model.weights = folder.string();
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    plan.train.precision = precision;
    comm::run_ranks(2, {}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      Trainer trainer(plan, world);
      for (int step = 0; step < 3; ++step) {
        for (size_t i = 0; i < loaded.size(); ++i) {
          const at::Tensor weight = trainer.model().parameter_list()[i].tensor.detach();
          EXPECT_TRUE(at::equal(trainer.masters()[i].tensor, loaded[i].tensor)) << loaded[i].spec.name << " " << step;
          EXPECT_TRUE(at::equal(weight, loaded[i].tensor.to(weight.scalar_type())))
              << loaded[i].spec.name << " " << step;
        }
        trainer.step();
      }
    });
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::train
