#include "lockstep/parallel/pipeline/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "lockstep/distributed/collectives.h"
#include "lockstep/parallel/pipeline/small_pipeline.h"
#include "lockstep/parallel/pipeline/split_batch.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::parallel {
namespace {

using schedule::Action;
using testing::Each;
using testing::ElementsAre;

PipelineRun run_of(const schedule::Table& table, int64_t rows) {
  return {.table = table, .inputs = some_numbers(rows, 1), .targets = some_numbers(rows, 2)};
}

// Every shape the kinds take on 2, 3 and 4 ranks: fewer micro-batches than stages, as many, more; rows that do not
// divide.
class Kinds : public testing::TestWithParam<std::string_view> {
 public:
  template <class Body>
  void for_each_table(Body&& body) {
    int tables = 0;
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int microbatches : {1, 2, 3, 4, 8}) {
        const auto table = table_of(GetParam(), ranks, microbatches);
        if (!table) continue;
        SCOPED_TRACE(text(GetParam(), ", ", ranks, " ranks, ", microbatches, " micro-batches"));
        body(*table);
        ++tables;
      }
    }
    EXPECT_GE(tables, 10);
  }
};
INSTANTIATE_TEST_SUITE_P(Whole, Kinds, testing::ValuesIn(kWholeBackwardKinds), [](const auto& kind) {
  return std::string(kind.param == "1f1b" ? "one_f_one_b" : kind.param);
});

TEST_P(Kinds, EqualOneProcessDoWhatTheTableSaysAndHoldWhatItHolds) {
  for_each_table([](const schedule::Table& table) {
    const Blocks blocks = make_blocks(table.stages());
    PipelineRun run = run_of(table, 2 * table.microbatches + 1);
    run.steps = 2;
    const Outcome one = run_whole(run, blocks), pipeline = run_pipeline(run, blocks);
    EXPECT_LE(worst_difference(pipeline, one), 1e-10);
    EXPECT_NEAR(pipeline.loss, one.loss, 1e-12 * one.loss);
    EXPECT_EQ(pipeline.recorded, pipeline.expected);
    EXPECT_EQ(pipeline.in_flight_peak, schedule::in_flight_peak(table));
  });
}

// One process that takes the same micro-batches, stage by stage, and their backwards in the order of `order`.
Outcome run_microbatches(const PipelineRun& run, const Blocks& blocks, const std::vector<int>& order) {
  std::vector<at::Tensor> inputs = split_evenly(run.inputs, run.table.microbatches, "inputs");
  const std::vector<at::Tensor> targets = split_evenly(run.targets, run.table.microbatches, "targets");
  for (auto block : blocks) block->zero_grad();
  for (const int m : order) {
    const auto i = static_cast<size_t>(m);
    for (auto block : blocks) inputs[i] = block->forward(inputs[i]);
    const double weight = static_cast<double>(targets[i].numel()) / static_cast<double>(run.targets.numel());
    (run.loss(inputs[i], targets[i]) * weight).backward();
  }
  Outcome outcome;
  for (const auto& block : blocks) outcome.gradients.push_back(gradients_of(*block));
  return outcome;
}

TEST_P(Kinds, HaveTheBitsOfOneProcessThatAddsInTheSameOrder) {
  at::set_num_threads(1);
  for_each_table([](const schedule::Table& table) {
    std::vector<int> order;  // of the last stage's backwards; other stages have the same
    for (const Action& action : table.actions_by_rank[static_cast<size_t>(table.rank_of_stage.back())]) {
      if (action.kind == Action::Kind::backward && action.stage == table.stages() - 1)
        order.push_back(action.microbatch);
    }
    const Blocks blocks = make_blocks(table.stages());
    const PipelineRun run = run_of(table, 2 * table.microbatches + 1);
    EXPECT_EQ(worst_difference(run_pipeline(run, blocks), run_microbatches(run, blocks, order)), 0);
  });
}

TEST_P(Kinds, MatchEachOutputWithItsOwnTarget) {
  for_each_table([](const schedule::Table& table) {
    const auto count = table.microbatches;
    on_ranks(table.ranks, [&](comm::ProcessGroup& world) {
      std::vector<PipelineStage> stages(static_cast<size_t>(table.stages() / table.ranks),
                                        {nullptr, [](const at::Tensor& x) { return x.clone(); }});
      PipelineSchedule pipeline(table, stages, world, {.loss_is = PipelineOptions::LossIs::sum});
      for (const int64_t longer : {0, 1, 5}) {  // the same length, then lengths that differ within a step
        std::vector<at::Tensor> labels;
        for (int m = 0; m < count; ++m) labels.push_back(torch::full({2, 3 + longer * m}, 10.0 + m, torch::kDouble));
        const StepResult result = pipeline.step(
            labels, labels, [](const at::Tensor& out, const at::Tensor& label) { return (out - label).abs().sum(); });
        if (!result.loss.defined()) continue;
        ASSERT_EQ(result.microbatch_losses.size(), static_cast<size_t>(count));
        for (const at::Tensor& loss : result.microbatch_losses) EXPECT_EQ(loss.item<double>(), 0);
      }
    });
  });
}

// A tensor that a stage keeps for its backward, counted while it lives.
struct Counter {
  void add() { peak = std::max(peak.load(), ++alive); }
  std::atomic<int> alive = 0, peak = 0;  // of one rank, whose thread alone adds
};
struct Keeping : torch::autograd::Function<Keeping> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Counter* counter) {
    counter->add();
    const at::Tensor kept = torch::from_blob(counter, {1}, [counter](void*) { --counter->alive; }, torch::kByte);
    context->save_for_backward({kept});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    EXPECT_EQ(context->get_saved_variables().size(), 1U);
    return {gradients[0], {}};
  }
};

TEST_P(Kinds, FreeActivationsWhenTheTableSaysSo) {
  for_each_table([](const schedule::Table& table) {
    const std::vector<double> expected = schedule::in_flight_peak(table);
    on_ranks(table.ranks, [&](comm::ProcessGroup& world) {
      Counter counter;
      const int chunks = table.stages() / table.ranks;
      const at::Tensor weight = torch::ones({}, torch::kDouble).requires_grad_();
      const std::vector<PipelineStage> stages(
          static_cast<size_t>(chunks),
          {nullptr, [&](const at::Tensor& x) { return Keeping::apply(x * weight, &counter); }});
      PipelineSchedule pipeline(table, stages, world);
      pipeline.step(some_numbers(table.microbatches, 1), some_numbers(table.microbatches, 2), PipelineRun{}.loss);
      EXPECT_EQ(static_cast<double>(counter.peak) / chunks, expected[static_cast<size_t>(world.rank())]);
      EXPECT_EQ(counter.alive, 0);
    });
  });
}

TEST(PipelineSchedule, EveryStageSeesTheSameMicrobatches) {
  const auto table = table_of("1f1b", 2, 3);
  on_ranks(2, [&](comm::ProcessGroup& world) {
    std::vector<int64_t> rows;
    PipelineSchedule pipeline(*table,
                              {{nullptr,
                                [&](const at::Tensor& x) {
                                  rows.push_back(x.size(0));
                                  return x * 1;
                                }}},
                              world);
    pipeline.step(some_numbers(8, 1), some_numbers(8, 2), PipelineRun{}.loss);
    EXPECT_THAT(rows, ElementsAre(3, 3, 2));
    pipeline.step(some_numbers(5, 1), some_numbers(5, 2), PipelineRun{}.loss);  // the last batch of an epoch
    EXPECT_THAT(rows, ElementsAre(3, 3, 2, 2, 2, 1));
  });
}

// What the comparison with one process has to notice.
TEST(PipelineFaults, AreSeenByTheComparison) {
  const auto table = table_of("1f1b", 2, 4);
  const Blocks blocks = make_blocks(2);
  const PipelineRun right = run_of(*table, 8);
  const Outcome one = run_whole(right, blocks);
  EXPECT_LE(worst_difference(run_pipeline(right, blocks), one), 1e-10);

  PipelineRun other_labels = right;  // output of micro-batch m with the labels of m - 1
  other_labels.targets = right.targets.roll(2, 0);
  EXPECT_GT(worst_difference(run_pipeline(other_labels, blocks), one), 1e-2);

  PipelineRun not_divided = right;  // each micro-batch's mean added as it is
  not_divided.options.loss_is = PipelineOptions::LossIs::sum;
  EXPECT_GT(worst_difference(run_pipeline(not_divided, blocks), one), 1e-2);

  // Each micro-batch's weight is right, and the accumulated buffer is divided by their number once more.
  Outcome rescaled = run_pipeline(right, blocks);
  for (auto& stage : rescaled.gradients) {
    for (auto& gradient : stage) gradient *= 0.25;
  }
  EXPECT_GT(worst_difference(rescaled, one), 1e-2);
}

TEST(PipelineSchedule, MeansWeighElementsWhenRowsDoNotDivide) {
  const auto table = table_of("gpipe", 2, 3);
  const Blocks blocks = make_blocks(2);
  const PipelineRun run = run_of(*table, 8);
  const Outcome pipeline = run_pipeline(run, blocks), one = run_whole(run, blocks);
  ASSERT_EQ(pipeline.microbatch_losses.size(), 3U);
  const auto& each = pipeline.microbatch_losses;
  EXPECT_NEAR(one.loss, (3 * each[0] + 3 * each[1] + 2 * each[2]) / 8, 1e-14);
  EXPECT_GT(std::abs(one.loss - (each[0] + each[1] + each[2]) / 3), 1e-4);  // which a mean of means would be
}

TEST(PipelineSchedule, RunsTablesThatRecompute) {
  for (const std::string_view kind : kWholeBackwardKinds) {
    const schedule::Table table = *table_of(kind, 2, 4);
    const Blocks blocks = make_blocks(table.stages());
    const PipelineRun plain = run_of(table, 9), recomputing = run_of(schedule::add_recompute(table), 9);
    const Outcome expected = run_pipeline(plain, blocks), actual = run_pipeline(recomputing, blocks);
    EXPECT_EQ(worst_difference(actual, expected), 0) << kind;
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_EQ(actual.recorded, actual.expected);
  }
}

TEST(PipelineSchedule, ARecomputationDrawsWhatItsForwardDrew) {
  const auto gradients = [](const schedule::Table& table) {
    torch::manual_seed(3);
    torch::nn::Sequential block(torch::nn::Linear(6, 6), torch::nn::Dropout(0.5), torch::nn::Linear(6, 6));
    block->to(torch::kDouble);
    const auto world = comm::single_rank();
    PipelineSchedule pipeline(table, {stage_of(block)}, *world);
    pipeline.step(some_numbers(8, 1), some_numbers(8, 2), PipelineRun{}.loss);
    return gradients_of(*block);
  };
  const schedule::Table table = *table_of("gpipe", 1, 4);
  const auto expected = gradients(table), actual = gradients(schedule::add_recompute(table));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
}

TEST(PipelineSchedule, ATraceHasEveryComputingAction) {
  const schedule::Table table = *table_of("interleaved", 2, 4);
  on_ranks(2, [&](comm::ProcessGroup& world) {
    trace::Recorder recorder(world.rank());
    world.set_recorder(&recorder);
    PipelineSchedule pipeline(table, std::vector(2, identity_stage()), world);
    pipeline.step(some_numbers(4, 1), some_numbers(4, 2), PipelineRun{}.loss);
    std::vector<Action> traced;
    for (const trace::Event& event : recorder.events()) {
      if (event.track != trace::Track::compute) continue;
      const auto kind = event.name() == "forward" ? Action::Kind::forward : Action::Kind::backward;
      traced.push_back({kind, event.stage, event.microbatch});
    }
    EXPECT_EQ(traced, table.actions_by_rank[static_cast<size_t>(world.rank())]);
  });
}

// Two pipelines side by side, each with half of the batch.
TEST(PipelineSchedule, GradientsAreReducedOverDataRanksAtReduceGrad) {
  const schedule::Table table = schedule::add_step(*table_of("1f1b", 2, 4));
  const Blocks blocks = make_blocks(2);
  const PipelineRun run = run_of(table, 16);
  const Outcome one = run_whole(run, blocks);
  on_ranks(4, [&](comm::ProcessGroup& world) {
    const int replica = world.rank() / 2, stage = world.rank() % 2;
    const auto pipeline_group = world.split(std::vector{2 * replica, 2 * replica + 1}, "pipeline");
    const auto data_group = world.split(std::vector{stage, stage + 2}, "data");
    std::vector<std::shared_ptr<torch::nn::Module>> copies;
    const auto stages = own_stages(table, blocks, stage, &copies);
    std::vector<std::string> calls;
    const auto reduce = [&](int reduced) {
      calls.push_back(text("reduce ", reduced));
      for (const auto& parameter : copies.front()->parameters()) {
        at::Tensor gradient = parameter.grad();
        all_reduce(gradient, *data_group, Reduction::average);
      }
    };
    PipelineSchedule pipeline(table, stages, *pipeline_group,
                              {.reduce_gradient = reduce, .optimizer_step = [&] { calls.push_back("step"); }});
    pipeline.step(run.inputs.chunk(2)[replica], run.targets.chunk(2)[replica], run.loss);
    EXPECT_THAT(calls, ElementsAre(text("reduce ", stage), "step"));
    Outcome own{.gradients = one.gradients};
    own.gradients[static_cast<size_t>(stage)] = gradients_of(*copies.front());
    EXPECT_LE(worst_difference(own, one), 1e-10);
  });
}

}  // namespace
}  // namespace lockstep::parallel
