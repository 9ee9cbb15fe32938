// Shapes and their exchange, large messages, refusals and failures of PipelineSchedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/pipeline_schedule.h"
#include "lockstep/parallel/pipeline/small_pipeline.h"
#include "lockstep/schedule/passes.h"

namespace lockstep::parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const LossFunction kMse = [](const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
};

TEST(PipelineShapes, AreExchangedInTheFirstStepAndWhenInputsChange) {
  const schedule::Table table = *table_of("1f1b", 4, 4);
  on_ranks(4, [&](comm::ProcessGroup& world) {
    PipelineSchedule pipeline(table, {identity_stage()}, world);
    std::vector<int64_t> announcements;
    for (const int64_t rows : {8, 8, 8, 9, 9, 8}) {
      pipeline.step(some_numbers(rows, 1), some_numbers(rows, 2), kMse);
      announcements.push_back(pipeline.announcements());
    }
    EXPECT_THAT(announcements, testing::ElementsAre(1, 1, 1, 2, 2, 3));
    pipeline.step(some_numbers(8, 1).to(torch::kFloat), some_numbers(8, 2), kMse);
    EXPECT_EQ(pipeline.announcements(), 4);
  });
}

// Message sizes beyond what any channel holds, with shapes exchanged in the same step: nothing is stuck.
TEST(PipelineShapes, AreExchangedBesideLargeMessagesOnManyStages) {
  for (const auto& [kind, ranks] : {std::pair{"interleaved", 2}, {"1f1b", 4}, {"gpipe", 4}, {"interleaved", 4}}) {
    schedule::Table table =
        kind == std::string_view("interleaved")
            ? schedule::make_table(kind, {.ranks = ranks, .microbatches = 4, .chunks = 4 / (ranks / 2)})
            : *table_of(kind, ranks, 4);
    on_ranks(ranks, [&](comm::ProcessGroup& world) {
      PipelineSchedule pipeline(table, std::vector(static_cast<size_t>(table.stages() / ranks), identity_stage()),
                                world, {.shapes_vary = true});
      for (const int64_t width : {1 << 16, 1 << 15}) {  // 2 MiB and 1 MiB per message
        const at::Tensor x = some_numbers(16, 1, width);
        const StepResult result = pipeline.step(x, x, kMse);
        if (result.loss.defined()) EXPECT_EQ(result.loss.item<double>(), 0);
      }
      EXPECT_EQ(pipeline.announcements(), 2);
    });
  }
}

// Tensors of a peer come in the order in which it sends them, whichever is used first; also while their shapes are not
// known yet.
TEST(PipelineShapes, AreExchangedThoughTensorsAreUsedInAnotherOrder) {
  const schedule::Table table = schedule::parse_table(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0RECV_B0,0B0,0B1\n"
      "1RECV_F0,1RECV_F1,1F1,1F0,1B1,1SEND_B1,1B0,1SEND_B0\n");
  const Blocks blocks = make_blocks(2);
  for (const int steps : {1, 2}) {
    const PipelineRun run{.table = table, .inputs = some_numbers(5, 1), .targets = some_numbers(5, 2), .steps = steps};
    EXPECT_LE(worst_difference(run_pipeline(run, blocks), run_whole(run, blocks)), 1e-10);
  }
}

TEST(PipelineShapes, ThatVaryOfThemselvesAreRefusedUnlessItIsSaid) {
  const auto two_steps = [](bool shapes_vary) {
    on_ranks(2, [&](comm::ProcessGroup& world) {
      int64_t times = 0;
      const PipelineStage growing{nullptr, [&](const at::Tensor& x) { return x.repeat({1, 1 + times}); }};
      const PipelineStage summing{nullptr, [](const at::Tensor& x) { return x.sum(1, true); }};
      PipelineSchedule pipeline(*table_of("gpipe", 2, 2), {world.rank() == 0 ? growing : summing}, world,
                                {.shapes_vary = shapes_vary});
      for (; times < 2; ++times) pipeline.step(some_numbers(4, 1), some_numbers(4, 2, 1), kMse);
    });
  };
  two_steps(true);
  EXPECT_THAT([&] { two_steps(false); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("0SEND_F0: Double [2, 12] where the step before had Double [2, 6]"),
                        HasSubstr("set shapes_vary"))));
}

TEST(PipelineShapes, StagesThatAreNotTrainedOrDoNotUseTheirInputAreFine) {
  on_ranks(3, [](comm::ProcessGroup& world) {
    const at::Tensor weight = torch::ones({6}, torch::kDouble).requires_grad_();
    const std::vector<PipelineStage> stages = {
        identity_stage(),  // nothing to train, and its input needs no gradient
        {nullptr, [&](const at::Tensor& x) { return x * weight; }},
        {nullptr, [&](const at::Tensor& x) { return torch::ones_like(x) * weight; }}};
    PipelineSchedule pipeline(*table_of("1f1b", 3, 2), {stages[static_cast<size_t>(world.rank())]}, world);
    pipeline.step(some_numbers(4, 1), torch::zeros({4, 6}, torch::kDouble), kMse);
    // mean over 24 of weight^2: 2 * 4 / 24 for each of the last stage's; nothing reaches the one before.
    if (world.rank() == 2) EXPECT_TRUE(at::allclose(weight.grad(), torch::full({6}, 1.0 / 3, torch::kDouble)));
    if (world.rank() == 1) EXPECT_TRUE(weight.grad().equal(torch::zeros({6}, torch::kDouble)));
  });
}

void construct(const schedule::Table& table, int ranks, size_t stages) {
  on_ranks(ranks,
           [&](comm::ProcessGroup& world) { PipelineSchedule(table, std::vector(stages, identity_stage()), world); });
}

TEST(PipelineRefuses, TablesItCannotRun) {
  EXPECT_THAT([] { construct(*table_of("zb_h1", 2, 4), 2, 1); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("rank 0 = 0I0"), HasSubstr("use a kind with whole backwards (naive, gpipe, 1f1b"))));
  EXPECT_THAT([] { construct(schedule::add_sharding(*table_of("1f1b", 2, 4)), 2, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("holds its parameters whole")));
  EXPECT_THAT([] { construct(*table_of("1f1b", 2, 4), 3, 1); },
              ThrowsMessage<InvalidArgument>("ranks = 2: the group 'world' has 3 (nearest: 3)"));
  EXPECT_THAT(
      [] { construct(*table_of("interleaved", 2, 4), 2, 1); },
      ThrowsMessage<InvalidArgument>(HasSubstr("= 1: the table places another number on this rank (nearest: 2)")));
  schedule::Table broken = *table_of("1f1b", 2, 4);
  std::swap(broken.actions_by_rank[1][0], broken.actions_by_rank[1][1]);
  EXPECT_THAT([&] { construct(broken, 2, 1); }, ThrowsMessage<InvalidArgument>(HasSubstr("rank 1 = 1B0")));
}

// Every rank gets the error, nothing is sent, and a right step works afterwards.
TEST(PipelineRefuses, BatchesThatDoNotFitOnEveryRank) {
  on_ranks(3, [](comm::ProcessGroup& world) {
    PipelineSchedule pipeline(*table_of("gpipe", 3, 4), {identity_stage()}, world);
    const auto step = [&](const at::Tensor& inputs, const at::Tensor& targets) {
      return [&, inputs, targets] { pipeline.step(inputs, targets, kMse); };
    };
    EXPECT_THAT(step(some_numbers(3, 1), some_numbers(3, 2)),
                ThrowsMessage<InvalidArgument>(
                    "microbatches = 4: every micro-batch needs a row, and inputs have 3 (nearest: 3)"));
    EXPECT_THAT(step({}, some_numbers(8, 2)),
                ThrowsMessage<InvalidArgument>("inputs: no tensor with a dim 0 on rank 0, which has the first stage"));
    EXPECT_THAT(step(some_numbers(8, 1), {}),
                ThrowsMessage<InvalidArgument>("targets: no tensor with a dim 0 on rank 2, which has the last stage"));
    EXPECT_THAT(step(some_numbers(8, 1), some_numbers(9, 2)),
                ThrowsMessage<InvalidArgument>(HasSubstr("targets = 9 rows")));
    const std::vector three(3, some_numbers(2, 1)), four(4, some_numbers(2, 1));
    EXPECT_THAT(
        [&] { pipeline.step(three, four, kMse); },
        ThrowsMessage<InvalidArgument>("inputs = 3 micro-batches: must be as many as the schedule's (nearest: 4)"));
    // Only the ranks at the ends need anything.
    const at::Tensor none;
    pipeline.step(world.rank() == 0 ? some_numbers(8, 1) : none, world.rank() == 2 ? some_numbers(8, 2) : none, kMse);
  });
}

TEST(PipelineRefuses, RanksWithDifferentTables) {
  EXPECT_THAT(
      [] {
        on_ranks(2, [](comm::ProcessGroup& world) {
          PipelineSchedule pipeline(*table_of(world.rank() == 0 ? "gpipe" : "1f1b", 2, 4), {identity_stage()}, world);
          pipeline.step(some_numbers(4, 1), some_numbers(4, 2), kMse);
        });
      },
      ThrowsMessage<ProtocolMismatch>(HasSubstr("have different schedules")));
}

// Runs one step of two ranks in which rank `rank` has this stage.
void step_with(const PipelineStage& stage, int rank, const LossFunction& loss = kMse) {
  on_ranks(2, [&](comm::ProcessGroup& world) {
    PipelineSchedule pipeline(*table_of("1f1b", 2, 4), {world.rank() == rank ? stage : identity_stage()}, world);
    pipeline.step(some_numbers(4, 1), some_numbers(4, 2), loss);
  });
}

TEST(PipelineRefuses, OutputsAndLossesWithoutAGradient) {
  EXPECT_THAT([] { step_with({nullptr, [](const at::Tensor& x) { return x.to(torch::kLong); }}, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("stage 0 returned Long")));
  EXPECT_THAT([] { step_with(identity_stage(), 0, [](const at::Tensor& x, const at::Tensor&) { return x; }); },
              ThrowsMessage<InvalidArgument>("the loss function returned [1, 6], not a scalar"));
}

struct Misfortune : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(PipelineFails, WithWhatAStageThrewAndNobodyWaitsForEver) {
  for (const int rank : {0, 1}) {
    int forwards = 0;
    const PipelineStage failing{nullptr, [&](const at::Tensor& x) {
                                  if (++forwards == 3) throw Misfortune("in the third");
                                  return x * 1;
                                }};
    EXPECT_THAT([&] { step_with(failing, rank); }, ThrowsMessage<Misfortune>("in the third")) << rank;
  }
}

TEST(PipelineFails, AndIsNotUsedAgain) {
  const auto world = comm::single_rank();
  bool fails = true;
  const PipelineStage stage{nullptr, [&](const at::Tensor& x) {
                              if (fails) throw Misfortune("once");
                              return x * 1;
                            }};
  PipelineSchedule pipeline(*table_of("naive", 1, 2), {stage}, *world);
  const auto step = [&] { pipeline.step(some_numbers(4, 1), some_numbers(4, 2), kMse); };
  EXPECT_THAT(step, ThrowsMessage<Misfortune>("once"));
  fails = false;
  EXPECT_THAT(step, ThrowsMessage<Error>(HasSubstr("make a new one")));
}

}  // namespace
}  // namespace lockstep::parallel
