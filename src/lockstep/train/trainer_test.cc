#include "lockstep/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

void expect_equal(const RunRecord& expected, const RunRecord& actual, const std::string& what) {
  const Comparison c = compare(expected, actual);
  EXPECT_LE(c.max_rel_loss, 1e-10) << what;
  EXPECT_LE(c.max_rel_grad, 1e-10) << what << " " << c.worst_parameter;
  EXPECT_LE(c.rel_norm, 1e-10) << what;
  EXPECT_LE(c.max_rel_param, 1e-10) << what;
  EXPECT_LE(c.max_rel_state, 1e-10) << what;
}

TEST(Trainer, EqualsThePlainLoopWhateverRanksMicrobatchesAndBuckets) {
  for (const int64_t microbatch : {1, 2, 4}) {
    for (const int ranks : {1, 2}) {
      for (const double bucket_mb : {25.0, 0.001}) {
        for (const bool overlap : {true, false}) {
          spec::RunPlan plan = small_plan();
          plan.train.microbatch = microbatch;
          plan.parallel.bucket_mb = bucket_mb;
          plan.parallel.overlap = overlap;
          const RunRecord reference = reference_of(plan);
          for (const Outcome& rank : run(plan, ranks)) {
            expect_equal(reference, rank.record,
                         text("microbatch ", microbatch, ", ranks ", ranks, ", bucket_mb ", bucket_mb));
          }
        }
      }
    }
  }
}

TEST(Trainer, UnequalNumbersOfMicrobatchesPerRank) {
  spec::RunPlan plan = small_plan();
  const RunRecord reference = reference_of(plan);
  for (const Outcome& rank : run(plan, 3)) expect_equal(reference, rank.record, "8 micro-batches on 3 ranks");
}

TEST(Trainer, DropoutMasksAreTheSameOnAnyNumberOfRanks) {
  spec::RunPlan plan = small_plan();
  plan.model.dropout = 0.2;
  const RunRecord reference = reference_of(plan);
  for (const int ranks : {2, 4}) {
    for (const Outcome& rank : run(plan, ranks))
      expect_equal(reference, rank.record, text("dropout on ", ranks, " ranks"));
  }
  plan.train.microbatch = 4;  // nor do they depend on the micro-batch
  for (const Outcome& rank : run(plan, 2)) expect_equal(reference, rank.record, "dropout with larger micro-batches");
}

TEST(Trainer, FixedTreeGivesTheSameBitsOn1And2And4Ranks) {
  spec::RunPlan plan = small_plan();
  plan.train.precision = spec::Precision::fp32;
  plan.parallel.reduction = spec::Reduction::fixed_tree;
  const RunRecord reference = reference_of(plan);
  for (const int ranks : {1, 2, 4}) {
    for (const Outcome& rank : run(plan, ranks))
      EXPECT_TRUE(compare(reference, rank.record).bitwise) << ranks << " ranks";
  }
}

// GRAD-14, GRAD-15: tokens weigh the same wherever they are. Sample s has s valid tokens (sample 0 none at all), so
// micro-batches and ranks are unequal and one rank of four has nothing to learn from in its first micro-batch.
data::Batch with_ignored_targets(const spec::RunPlan& plan, int64_t step, int64_t microbatch) {
  const data::Batches batches(plan);
  data::Batch batch = batches.train(step, microbatch);
  for (int64_t row = 0; row < batch.targets_BS.size(0); ++row) {
    const int64_t sample = microbatch * plan.train.microbatch + row;
    batch.targets_BS[row].narrow(0, sample, plan.model.sequence - sample).fill_(data::kIgnoredTarget);
  }
  return batch;
}

TEST(Trainer, LossAndGradientDoNotDependOnWhereValidTokensAre) {
  spec::RunPlan plan = small_plan();
  plan.train.microbatch = 8;
  std::map<int64_t, RunRecord> reference;
  for (const int64_t microbatch : {8, 4, 2, 1}) {
    plan.train.microbatch = microbatch;
    for (const int ranks : {1, 2, 4}) {
      if (plan.train.global_batch / microbatch < ranks) continue;
      const auto outcomes = run(plan, ranks, [&](int) {
        return TrainerOptions{
            .source = [plan](int64_t step, int64_t m) { return with_ignored_targets(plan, step, m); }};
      });
      if (reference.empty()) reference[0] = outcomes.front().record;
      for (const Outcome& rank : outcomes) {
        expect_equal(reference[0], rank.record, text("microbatch ", microbatch, ", ranks ", ranks));
        EXPECT_EQ(rank.reports.front().tokens, 28);
      }
    }
  }
}

TEST(Trainer, ABatchWithoutAnyValidTokenChangesNothingAndIsNotNaN) {
  spec::RunPlan plan = small_plan();
  plan.train.steps = 1;
  plan.train.weight_decay = 0;
  const auto outcomes = run(plan, 2, [&](int) {
    return TrainerOptions{.source = [plan](int64_t step, int64_t m) {
      data::Batch batch = data::Batches(plan).train(step, m);
      batch.targets_BS.fill_(data::kIgnoredTarget);
      return batch;
    }};
  });
  for (const Outcome& rank : outcomes) {
    EXPECT_EQ(rank.reports.front().loss, 0);
    EXPECT_EQ(rank.reports.front().grad_norm, 0);
    EXPECT_FALSE(rank.reports.front().skipped);
  }
}

// OPS-07: a value that is not a number, in one activation of one rank.
TEST(Trainer, ANonFiniteStepIsSkippedOnAllRanksAndShown) {
  spec::RunPlan plan = small_plan();
  plan.train.steps = 3;
  plan.train.lr = 1e-2;
  plan.train.decay = spec::Decay::none;
  plan.train.warmup_steps = 3;
  PoisonedSeams poisoned(1, {.first_step = 2});
  comm::run_ranks(2, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    Trainer trainer(plan, world, {.seams = world.rank() == 1 ? &poisoned.seams : nullptr});
    EXPECT_FALSE(trainer.step().skipped);
    const StepReport fine = trainer.step();
    EXPECT_FALSE(fine.skipped);
    std::vector<at::Tensor> before;
    for (const auto& parameter : trainer.model().parameter_list()) before.push_back(parameter.tensor.detach().clone());
    const StepReport report = trainer.step();
    EXPECT_TRUE(report.skipped);
    EXPECT_TRUE(std::isnan(report.loss));
    EXPECT_EQ(report.step, 3);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(at::equal(before[i], trainer.model().parameter_list()[i].tensor));
  });
}

TEST(Trainer, ARunThatOnlySkipsEndsWithTheParameterNamed) {
  spec::RunPlan plan = small_plan();
  plan.train.steps = 30;
  PoisonedSeams poisoned(1, {.first_step = 0});
  try {
    run(plan, 2, [&](int) { return TrainerOptions{.seams = &poisoned.seams}; });
    FAIL() << "a run that only skips must end";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("steps in a row were skipped"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("weight"));
  }
}

TEST(Trainer, InterpretsTheTableItWasGiven) {
  spec::RunPlan plan = small_plan();
  comm::run_ranks(2, {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    trace::Recorder recorder(world.rank());
    Trainer trainer(plan, world, {.recorder = &recorder});
    trainer.step();
    std::vector<std::string> recorded, planned;
    for (const auto& event : recorder.events()) {
      if (event.track == trace::Track::compute) recorded.push_back(text(event.name(), " ", event.microbatch));
    }
    for (const auto& action : trainer.executor().actions())
      planned.push_back(text(name(action.kind), " ", action.microbatch));
    EXPECT_EQ(recorded, planned);
    world.set_recorder(nullptr);
  });
}

// REC-01: the bits of no recomputation, with dropout, accumulation and ranks; every segment that runs again is a span
// of the trace.
TEST(Trainer, RecomputationChangesNoBitAndIsRecorded) {
  spec::RunPlan plan = small_plan();
  plan.model.dropout = 0.5;
  plan.model.layers = 3;
  plan.train.steps = 2;
  plan.train.microbatch = 2;
  for (const int ranks : {1, 2}) {
    plan.parallel.recompute = spec::Recompute::none;
    const std::vector<Outcome> plain = run(plan, ranks);
    // Segments that run again, of 3 layers: sqrt makes two, of 2 and 1 layers, and keeps the last.
    for (const auto& [mode, segments] : {std::pair{spec::Recompute::full, 3}, std::pair{spec::Recompute::sqrt, 1},
                                         std::pair{spec::Recompute::selective, 3}}) {
      plan.parallel.recompute = mode;
      std::vector<std::unique_ptr<trace::Recorder>> recorders;
      for (int rank = 0; rank < ranks; ++rank) recorders.push_back(std::make_unique<trace::Recorder>(rank));
      const std::vector<Outcome> recomputed = run(plan, ranks, [&](int rank) {
        return TrainerOptions{.recorder = recorders[static_cast<size_t>(rank)].get()};
      });
      for (size_t rank = 0; rank < plain.size(); ++rank) {
        EXPECT_TRUE(compare(plain[rank].record, recomputed[rank].record).bitwise) << ranks << " ranks, " << segments;
        const auto events = recorders[rank]->events();
        const auto reruns = std::ranges::count_if(events, [](const auto& e) { return e.name() == "recompute"; });
        EXPECT_EQ(reruns, plan.train.steps * (4 / ranks) * segments);
      }
    }
  }
}

TEST(Trainer, ValidationLossIsTheSameOnAnyNumberOfRanks) {
  spec::RunPlan plan = small_plan();
  plan.run.validation_batches = 3;
  std::vector<double> losses;
  for (const int ranks : {1, 2, 4}) {
    comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      Trainer trainer(plan, world);
      const double loss = trainer.validation_loss();
      if (world.rank() == 0) losses.push_back(loss);
    });
  }
  EXPECT_NEAR(losses[0], std::log(32.0), 0.2);
  EXPECT_NEAR(losses[1], losses[0], 1e-12);
  EXPECT_NEAR(losses[2], losses[0], 1e-12);
}

TEST(Trainer, RefusesAPlanThatDoesNotFitTheRanks) {
  comm::run_ranks(3, {}, [&](comm::ProcessGroup& world) {
    spec::RunPlan plan = small_plan();
    plan.parallel.data = 2;
    EXPECT_THROW(Trainer(plan, world), InvalidArgument);
  });
}

// The comparison must not pass what is wrong.
TEST(Compare, SeesEveryKindOfDifference) {
  const RunRecord reference = reference_of(small_plan());
  EXPECT_TRUE(compare(reference, reference).bitwise);
  EXPECT_EQ(compare(reference, reference).max_rel_grad, 0);

  RunRecord scaled = reference_of(small_plan());
  scaled.steps[1].gradients[3].tensor *= 1.001;
  EXPECT_GT(compare(reference, scaled).max_rel_grad, 1e-4);
  EXPECT_EQ(compare(reference, scaled).worst_parameter, reference.steps[1].gradients[3].name);
  EXPECT_FALSE(compare(reference, scaled).bitwise);

  RunRecord not_a_number = reference_of(small_plan());
  not_a_number.steps[0].gradients[0].tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isinf(compare(reference, not_a_number).max_rel_grad));

  RunRecord moved = reference_of(small_plan());
  moved.parameters[0].tensor += 1e-6;
  moved.state[0].tensor += 1e-6;
  moved.steps[2].loss += 1e-6;
  moved.steps[3].grad_norm *= 1 + 1e-6;
  const Comparison c = compare(reference, moved);
  EXPECT_GT(c.max_rel_param, 1e-7);
  EXPECT_GT(c.max_rel_state, 1e-7);
  EXPECT_GT(c.max_rel_loss, 1e-8);
  EXPECT_GT(c.rel_norm, 1e-8);
}

TEST(Record, SurvivesItsFile) {
  const RunRecord reference = reference_of(small_plan());
  const std::string path = ::testing::TempDir() + "/record.safetensors";
  write_record(path, reference);
  const RunRecord read = read_record(path);
  ASSERT_EQ(read.steps.size(), reference.steps.size());
  EXPECT_EQ(read.steps[2].loss, reference.steps[2].loss);
}

}  // namespace
}  // namespace lockstep::train
