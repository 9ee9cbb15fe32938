// The trainer with sharded states in low precision: masters in shards, one loss scale, one decision. Layouts are
// compared with the plain loop of the same precision (trainer_precision_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>

#include "lockstep/checkpoint/weights.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/names.h"
#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

using spec::GradientDtype, spec::Precision;

spec::RunPlan low_plan(std::string_view layout, Precision precision) {
  spec::RunPlan plan = small_plan();
  plan.train.precision = precision;
  plan.train.steps = 3;
  plan.train.lr = 1e-3;
  plan.parallel.bucket_mb = 0.01;
  return spec::apply(spec::parse_layout(layout), plan);
}

int ranks_of(const spec::RunPlan& plan) {
  return static_cast<int>(plan.parallel.data * plan.parallel.tensor);
}

double first_gradient_error(RunRecord reference, RunRecord layout) {
  reference.steps.resize(1);
  layout.steps.resize(1);
  return compare(reference, layout).max_rel_grad;
}

TEST(ShardedPrecision, LayoutsEqualThePlainLoopOfTheSamePrecision) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    for (const GradientDtype dtype : {GradientDtype::fp32, GradientDtype::model}) {
      for (const char* layout : {"zero1", "zero2", "zero3", "dp2-zero1", "dp2-zero2", "dp2-zero3", "dp3-zero3",
                                 "dp4-zero2g2", "dp4-zero3g2", "dp2-tp2-zero1", "dp2-tp2-sp-zero3"}) {
        for (const bool immediate : {false, true}) {
          spec::RunPlan plan = low_plan(layout, precision);
          if (immediate && plan.parallel.zero < 2) continue;
          if (immediate) plan.parallel.gradient_reduction = spec::GradientReduction::immediate;
          plan.train.gradient_dtype = dtype;
          const RunRecord reference = reference_of(plan);
          const bool rounded = dtype == GradientDtype::model || plan.parallel.tensor > 1;
          for (const Outcome& rank : run(plan, ranks_of(plan))) {
            const std::string what =
                text(layout, " ", spec::name(precision), ", gradients ", spec::name(dtype), ", immediate ", immediate);
            EXPECT_LE(first_gradient_error(reference, rank.record), rounded ? 5e-2 : 1e-5) << what;
            EXPECT_LE(compare(reference, rank.record).max_rel_loss, 2e-2) << what;
          }
        }
      }
    }
  }
}

// Before any step masters are the plain loop's to the bit; after some the weights that compute are their rounding.
TEST(ShardedPrecision, MastersStartFromTheSameBitsAndWeightsAreTheirRounding) {
  for (const char* layout : {"dp2-zero1", "dp3-zero2", "dp2-zero3", "dp4-zero3g2", "dp2-tp2-zero2"}) {
    spec::RunPlan plan = low_plan(layout, Precision::bf16);
    comm::run_ranks(ranks_of(plan), {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      Trainer trainer(plan, world);
      EXPECT_TRUE(trainer.masters().empty());
      RunRecord start, end;
      trainer.record_end(start);
      const auto expected = build(plan, at::kCPU).masters;
      ASSERT_EQ(start.parameters.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(start.parameters[i].tensor.scalar_type(), at::kFloat);
        EXPECT_TRUE(at::equal(start.parameters[i].tensor, expected[i].tensor)) << layout << expected[i].spec.name;
      }
      for (int step = 0; step < 2; ++step) trainer.step();
      trainer.record_end(end);
      bool finer = false;
      for (size_t i = 0; i < end.parameters.size(); ++i) {
        const at::Tensor &master = end.parameters[i].tensor, rounded = master.to(at::kBFloat16);
        finer = finer || !at::equal(rounded.to(at::kFloat), master);
        if (plan.parallel.zero == 3 || plan.parallel.tensor > 1) continue;
        EXPECT_TRUE(at::equal(trainer.model().parameter_list()[i].tensor.detach(), rounded)) << end.parameters[i].name;
      }
      EXPECT_TRUE(finer);
    });
  }
}

// MP-02: ranks that begin with other scales use rank 0's; and as it is a power of two, any scale gives the same bits
// where nothing under- or overflows.
TEST(ShardedPrecision, AllRanksHaveOneLossScaleWhichChangesNoGradient) {
  for (const char* layout : {"dp2-zero1", "dp2-zero2", "dp2-zero3"}) {
    const auto with_scales = [&](double of_rank_0, double of_rank_1) {
      return run(low_plan(layout, Precision::fp16), 2, [=](int rank) {
        return TrainerOptions{.loss_scale = {.initial = rank == 0 ? of_rank_0 : of_rank_1}};
      });
    };
    const auto equal = with_scales(4096, 4096), different = with_scales(4096, 2), other = with_scales(8192, 8192);
    for (size_t rank = 0; rank < 2; ++rank) {
      for (const StepReport& report : different[rank].reports) EXPECT_EQ(report.loss_scale, 4096);
      EXPECT_TRUE(compare(equal[rank].record, different[rank].record).bitwise) << layout << " rank " << rank;
      EXPECT_LE(compare(equal[rank].record, other[rank].record).rel_norm, 1e-2) << "the norm is of unscaled gradients";
    }
  }
}

// MP-03: infinity in one activation of one rank, which is late as well: every rank skips, the scale goes from 2 to 1
// everywhere, no bit of a master or weight changes, and the next step is an update.
TEST(ShardedPrecision, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (const char* layout : {"dp4-zero1", "dp4-zero2", "dp4-zero3", "dp4-zero3g2", "dp2-tp2-zero1", "dp2-tp2-zero3"}) {
    const spec::RunPlan plan = low_plan(layout, Precision::fp16);
    comm::run_ranks(4, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      // Tensor ranks meet inside of layers: the poisoned rank is one whose layers are whole, or all of a tensor group.
      PoisonedSeams poisoned(static_cast<uint64_t>(plan.train.seed),
                             {.first_step = 0, .last_step = 0, .delay = std::chrono::milliseconds(50)});
      const bool is_poisoned = plan.parallel.tensor == 1 && world.rank() == 2;
      // Over tensor ranks an overflow needs no seam: a scale that no gradient survives.
      const optim::LossScaleOptions scale = plan.parallel.tensor > 1
                                                ? optim::LossScaleOptions{.initial = 0x1p40, .backoff = 0x1p-40}
                                                : optim::LossScaleOptions{.initial = 2};
      Trainer trainer(plan, world, {.seams = is_poisoned ? &poisoned.seams : nullptr, .loss_scale = scale});
      RunRecord before, after;
      trainer.record_end(before);
      const StepReport skipped = trainer.step();
      EXPECT_TRUE(skipped.skipped) << layout;
      EXPECT_EQ(skipped.loss_scale, scale.initial);
      trainer.record_end(after);
      for (size_t i = 0; i < before.parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(before.parameters[i].tensor, after.parameters[i].tensor)) << before.parameters[i].name;
      }
      for (const NamedTensor& state : after.state) EXPECT_EQ(at::count_nonzero(state.tensor).item<int64_t>(), 0);
      const StepReport next = trainer.step();
      EXPECT_FALSE(next.skipped) << layout;
      EXPECT_EQ(next.loss_scale, 1);
      EXPECT_EQ(trainer.updates(), 1);
    });
  }
}

// MP-08: warm-up to 1, 2, 3 and a scale that overflows in the first step.
TEST(ShardedPrecision, SchedulesAndCountersStandStillOnASkippedStep) {
  for (const char* layout : {"dp2-zero1", "dp2-zero3"}) {
    spec::RunPlan plan = low_plan(layout, Precision::fp16);
    plan.train.steps = 4;
    plan.train.lr = 3e-3;
    plan.train.warmup_steps = 3;
    const auto outcomes =
        run(plan, 2, [](int) { return TrainerOptions{.loss_scale = {.initial = 0x1p40, .backoff = 0x1p-30}}; });
    for (const Outcome& rank : outcomes) {
      std::vector<double> rates;
      for (const StepReport& report : rank.reports) {
        if (!report.skipped) rates.push_back(report.lr);
      }
      EXPECT_TRUE(rank.reports[0].skipped);
      EXPECT_THAT(rates, ::testing::ElementsAre(::testing::DoubleEq(1e-3), ::testing::DoubleEq(2e-3),
                                                ::testing::DoubleEq(3e-3)));
      for (const NamedTensor& state : rank.record.state) {
        if (state.name.ends_with("/step")) EXPECT_EQ(state.tensor.item<double>(), 3) << state.name;
      }
    }
  }
}

// OPS-07: infinity in every step ends the run with a tensor named.
TEST(ShardedPrecision, ARunThatOnlySkipsEndsWithTheParameterNamed) {
  for (const char* layout : {"dp2-zero2", "dp2-zero3"}) {
    spec::RunPlan plan = low_plan(layout, Precision::fp16);
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

// A folder with the weights of another seed, and a plan that begins with them and changes nothing.
class LoadedWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    const spec::RunPlan saved = low_plan("single", Precision::fp32);
    loaded_ = build(saved, at::kCPU).masters;
    checkpoint::save_weights(folder_, saved.model, loaded_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  spec::RunPlan plan(std::string_view layout, Precision precision) const {
    spec::RunPlan plan = low_plan(layout, precision);
    plan.train.seed = 99;   // other initial values
    plan.train.lr = 1e-60;  // 0 in fp32
    plan.train.weight_decay = 0;
    plan.model.weights = folder_.string();
    return plan;
  }

  const std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / "loaded_master_shards";
  std::vector<nn::Parameter> loaded_;
};

// MP-06: masters are the loaded weights to the last bit, before and after steps that change nothing; so are those
// saved.
TEST_F(LoadedWeights, AreThoseOfShardedMasters) {
  for (const char* layout : {"dp2-zero1", "dp2-zero2", "dp2-zero3", "dp4-zero3g2", "dp2-tp2-zero3"}) {
    const spec::RunPlan plan = this->plan(layout, Precision::bf16);
    comm::run_ranks(ranks_of(plan), {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      Trainer trainer(plan, world);
      for (int step = 0; step < 3; ++step) {
        RunRecord now;
        trainer.record_end(now);
        for (size_t i = 0; i < loaded_.size(); ++i) {
          EXPECT_TRUE(at::equal(now.parameters[i].tensor, loaded_[i].tensor)) << layout << loaded_[i].spec.name << step;
        }
        trainer.step();
      }
      const auto saved = trainer.parameters_to_save();
      if (world.rank() == 0) ASSERT_EQ(saved.size(), loaded_.size());
      for (size_t i = 0; i < saved.size(); ++i) EXPECT_TRUE(at::equal(saved[i].tensor, loaded_[i].tensor));
    });
  }
}

// Weights that are loaded into the model alone: the first step computes with them, and the first update brings back
// what the masters were. The comparison with the plain loop, which begins with the loaded ones, names it.
TEST_F(LoadedWeights, WhoseMastersWereNotRefreshedAreSeen) {
  for (const char* layout : {"dp2-zero1", "dp2-zero2"}) {
    const spec::RunPlan right = plan(layout, Precision::bf16);
    const RunRecord reference = reference_of(right);
    spec::RunPlan wrong = right;
    wrong.model.weights.clear();
    comm::run_ranks(2, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      RunRecord record;
      Trainer trainer(wrong, world, {.record = &record});
      for (size_t i = 0; i < loaded_.size(); ++i) {
        trainer.model().parameter_list()[i].tensor.data().copy_(loaded_[i].tensor);
      }
      for (int step = 0; step < 3; ++step) trainer.step();
      trainer.record_end(record);
      EXPECT_LE(first_gradient_error(reference, record), 1e-5) << "step 1 looks right";
      const Comparison c = compare(reference, record);
      EXPECT_GT(c.max_rel_grad, 1e-1) << layout;
      EXPECT_GT(c.max_rel_param, 1e-1) << layout;
      EXPECT_NE(c.worst_weight, "");
    });
  }
}

}  // namespace
}  // namespace lockstep::train
