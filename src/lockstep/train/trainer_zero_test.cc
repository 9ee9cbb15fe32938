// The trainer with sharded states, and what tells that the proof would notice if it were wrong: faults that exist in
// this file alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/cost/memory.h"
#include "lockstep/spec/layout.h"
#include "lockstep/train/leaving_out.h"
#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

using ::testing::AnyOf;
using ::testing::StartsWith;

spec::RunPlan small_plan(std::string_view layout) {
  spec::RunPlan plan = train::small_plan();
  plan.model.layers = 3;
  plan.train.steps = 3;
  plan.parallel.bucket_mb = 0.02;
  return spec::apply(spec::parse_layout(layout), plan);
}

// Makes the predicate of a rank's group; a rank has its own, as it may count.
using Fault = std::function<LeavingOut::Predicate()>;
using OnRank = std::function<void(comm::ProcessGroup& world, TrainerOptions& options)>;

std::vector<RunRecord> run(const spec::RunPlan& plan, const Fault& fault = nullptr, const OnRank& on_rank = nullptr) {
  const int ranks = static_cast<int>(plan.parallel.data * plan.parallel.tensor);
  std::vector<RunRecord> records(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    LeavingOut group(world, fault ? fault() : [](const comm::Call&) { return false; });
    RunRecord& record = records[static_cast<size_t>(world.rank())];
    TrainerOptions options{.record = &record};
    if (on_rank) on_rank(world, options);
    Trainer trainer(plan, group, options);
    for (int64_t step = 0; step < plan.train.steps; ++step) trainer.step();
    trainer.record_end(record);
  });
  return records;
}

RunRecord reference_of(const spec::RunPlan& plan) {
  at::set_num_threads(1);
  return plain_loop(plan);
}

double worst(const Comparison& c) {
  return std::max({c.max_rel_loss, c.max_rel_grad, c.rel_norm, c.max_rel_param, c.max_rel_state});
}

void expect_equal(const spec::RunPlan& plan, const std::string& what) {
  const RunRecord reference = reference_of(plan);
  for (const RunRecord& record : run(plan)) {
    const Comparison c = compare(reference, record);
    EXPECT_LE(worst(c), 1e-10) << what << ": " << c.worst_parameter << ", weight " << c.worst_weight;
  }
}

TEST(TrainerZero, EqualsThePlainLoopWhateverIsShardedAndWhenItIsReduced) {
  for (const char* layout : {"zero1", "zero2", "zero3", "dp2-zero1", "dp2-zero2", "dp2-zero3", "dp3-zero2", "dp3-zero3",
                             "dp4-zero2g2", "dp4-zero3g2", "dp4-zero3-acc2"}) {
    for (const bool tied : {true, false}) {
      spec::RunPlan plan = small_plan(layout);
      plan.model.tie_embeddings = tied;
      expect_equal(plan, text(layout, ", tied ", tied));
      if (plan.parallel.zero < 2) continue;
      plan.parallel.gradient_reduction = spec::GradientReduction::immediate;
      expect_equal(plan, text(layout, ", immediate, tied ", tied));
      if (plan.parallel.zero < 3) continue;
      plan.parallel.gather = spec::Gather::stage;
      expect_equal(plan, text(layout, ", immediate, gathered for the step, tied ", tied));
    }
  }
}

// What tensor ranks hold alike is shared by them too; the norm still counts each element once.
TEST(TrainerZero, SharesWhatTensorRanksHold) {
  for (const char* layout : {"tp2-zero3", "dp2-tp2-zero1", "dp2-tp2-zero3", "dp2-tp2-sp-zero2", "dp2-tp2-sp-zero3",
                             "dp2-tp2-zero3g1", "dp2-tp2-sp-zero2g1"}) {
    expect_equal(small_plan(layout), layout);
  }
}

// Losses that are infinite on one rank in one step.
class InfiniteOnce final : public nn::LossSeam {
 public:
  at::Tensor embed(const at::Tensor& tokens_BS, const at::Tensor& table_VH, const at::Tensor& positions_SH,
                   const nn::Site& site) override {
    return local_.embed(tokens_BS, table_VH, positions_SH, site);
  }
  at::Tensor token_losses(const at::Tensor& hidden_BSH, const at::Tensor& head_VH, const at::Tensor& targets_BS,
                          const nn::Site& site) override {
    const at::Tensor losses_BS = local_.token_losses(hidden_BSH, head_VH, targets_BS, site);
    return site.microbatch.step == 1 ? losses_BS * std::numeric_limits<double>::infinity() : losses_BS;
  }

 private:
  nn::LocalLoss local_;
};

TEST(TrainerZero, AStepThatIsNotFiniteOnOneRankIsSkippedByAllAndTheNextOnesAreTaken) {
  for (const char* layout : {"dp2-zero1", "dp2-zero2", "dp2-zero3", "dp4-zero3g2"}) {
    const spec::RunPlan plan = small_plan(layout);
    std::vector<RunRecord> records(static_cast<size_t>(plan.parallel.data));
    comm::run_ranks(static_cast<int>(plan.parallel.data), {.deadline = std::chrono::seconds(60)},
                    [&](comm::ProcessGroup& world) {
                      at::set_num_threads(1);
                      InfiniteOnce infinite;
                      nn::LocalSeams local(1);
                      const nn::Seams own = local.seams();
                      nn::Seams seams = {own.linear, infinite, own.attention, own.dropout};
                      Trainer trainer(plan, world, {.seams = world.rank() == 1 ? &seams : nullptr});
                      for (int step = 0; step < 3; ++step) EXPECT_EQ(trainer.step().skipped, step == 1) << layout;
                      trainer.record_end(records[static_cast<size_t>(world.rank())]);
                    });
    for (const RunRecord& record : records) {
      for (size_t i = 0; i < record.parameters.size(); ++i) {
        EXPECT_TRUE(record.parameters[i].tensor.isfinite().all().item<bool>());
        EXPECT_TRUE(at::equal(record.parameters[i].tensor, records[0].parameters[i].tensor));
      }
    }
  }
}

// What a rank has sent to reduce gradients and to gather weights, in elements: collectives at their least.
double sent_by(const trace::Recorder& recorder, double ranks, double group) {
  double sent = 0;
  for (const trace::Event& event : recorder.events()) {
    const std::string_view name = event.name();
    const double elements = static_cast<double>(event.bytes) / sizeof(double);
    if (name.starts_with("reduce_scatter gradients") || name.starts_with("all_gather weights")) {
      sent += elements * (group - 1);
    } else if (name.starts_with("all_reduce gradients")) {
      sent += elements * 2 * (ranks / group - 1) / (ranks / group);
    } else if (name.starts_with("all_reduce bucket")) {
      sent += elements * 2 * (ranks - 1) / ranks;
    }
  }
  return sent;
}

TEST(TrainerZero, SendsWhatTheLedgerSays) {
  for (const char* layout : {"dp4", "dp4-zero1", "dp4-zero2", "dp4-zero3", "dp2-zero3", "dp4-zero2g2", "dp4-zero3g2",
                             "dp2-zero3-acc2", "zero3"}) {
    for (const bool tied : {true, false}) {
      for (const bool immediate : {false, true}) {
        spec::RunPlan plan = small_plan(layout);
        if (immediate && plan.parallel.zero < 2) continue;
        plan.model.tie_embeddings = tied;
        plan.model.hidden = 32;
        if (immediate) plan.parallel.gradient_reduction = spec::GradientReduction::immediate;
        const auto ranks = static_cast<double>(plan.parallel.data);
        const double group = plan.parallel.zero_group > 0 ? static_cast<double>(plan.parallel.zero_group) : ranks;
        std::vector<std::unique_ptr<trace::Recorder>> recorders;
        for (int rank = 0; rank < plan.parallel.data; ++rank) {
          recorders.push_back(std::make_unique<trace::Recorder>(rank));
        }
        run(plan, nullptr, [&](comm::ProcessGroup& world, TrainerOptions& options) {
          options.record = nullptr;
          options.recorder = recorders[static_cast<size_t>(world.rank())].get();
        });
        const double expected = cost::elements_sent(plan, plan.parallel.data) * static_cast<double>(plan.train.steps);
        for (const auto& recorder : recorders) {
          EXPECT_NEAR(sent_by(*recorder, ranks, group), expected, 0.01 * expected)  // padding
              << layout << ", tied " << tied << ", immediate " << immediate;
        }
      }
    }
  }
}

// -- faults ----------------------------------------------------------------------------------------------------------

// Calls whose tag is `tag`, from the `from`-th on.
Fault leave_out(std::string tag, int from) {
  return [=] {
    return [=, seen = 0](const comm::Call& call) mutable { return call.options.tag == tag && seen++ >= from; };
  };
}

TEST(TrainerZeroFault, AShardThatIsStaleAfterItsUpdateIsNamed) {
  const spec::RunPlan plan = small_plan("dp2-zero2");
  const RunRecord reference = reference_of(plan);
  // The last update of one bucket does not reach the other rank.
  for (const RunRecord& record : run(plan, leave_out("weights bucket 1", 2))) {
    const Comparison c = compare(reference, record);
    EXPECT_LE(c.max_rel_grad, 1e-10);
    EXPECT_GT(c.max_rel_param, 1e-6);
    const auto differs = [&](const std::string& name) {
      for (size_t i = 0; i < record.parameters.size(); ++i) {
        if (record.parameters[i].name == name)
          return !at::allclose(record.parameters[i].tensor, reference.parameters[i].tensor, 1e-8, 1e-10);
      }
      return false;
    };
    EXPECT_TRUE(differs(c.worst_weight)) << c.worst_weight;
  }
}

TEST(TrainerZeroFault, AMissedGatherIsNamed) {
  const spec::RunPlan plan = small_plan("dp2-zero3");
  const RunRecord reference = reference_of(plan);
  constexpr int kGathers = 2 * 4 * 3;  // forward and backward, micro-batches, steps
  // Block 1 is not gathered for its last backward: the gradients of what comes before it are wrong.
  for (const RunRecord& record : run(plan, leave_out("weights layers.1", kGathers - 1))) {
    const Comparison c = compare(reference, record);
    EXPECT_GT(c.max_rel_grad, 1e-6);
    EXPECT_THAT(c.worst_parameter, AnyOf(StartsWith("layers.1."), StartsWith("layers.0."), StartsWith("embed.")))
        << c.worst_parameter;
  }
}

// The mean over micro-batches of their tokens' mean losses, where the loss is to be the mean over all tokens.
class MeanOfMeans final : public nn::LossSeam {
 public:
  explicit MeanOfMeans(double share) : share_(share) {}
  at::Tensor embed(const at::Tensor& tokens_BS, const at::Tensor& table_VH, const at::Tensor& positions_SH,
                   const nn::Site& site) override {
    return local_.embed(tokens_BS, table_VH, positions_SH, site);
  }
  at::Tensor token_losses(const at::Tensor& hidden_BSH, const at::Tensor& head_VH, const at::Tensor& targets_BS,
                          const nn::Site& site) override {
    const auto valid = static_cast<double>(nn::count_valid(targets_BS));
    return local_.token_losses(hidden_BSH, head_VH, targets_BS, site) * (share_ / valid);
  }

 private:
  nn::LocalLoss local_;
  double share_;  // tokens of the global batch over its micro-batches
};

TEST(TrainerZeroFault, TheMeanOfMicrobatchMeansIsNamed) {
  for (const char* layout : {"dp2-zero1", "dp2-zero2", "dp2-zero3"}) {
    const spec::RunPlan plan = small_plan(layout);
    const data::Batches batches(plan);
    const auto source = [&](int64_t step, int64_t m) {  // micro-batch m has m + 1 valid tokens: 36 in all
      data::Batch batch = batches.train(step, m);
      batch.targets_BS.slice(1, m + 1).fill_(spec::kIgnoredTarget);
      return batch;
    };
    const auto with_source = [&](comm::ProcessGroup&, TrainerOptions& options) { options.source = source; };
    const RunRecord reference = run(small_plan("single"), nullptr, with_source).front();
    EXPECT_LE(worst(compare(reference, run(plan, nullptr, with_source).front())), 1e-10);

    MeanOfMeans loss(36.0 / 8);
    nn::LocalSeams local(1);
    nn::Seams seams = {local.seams().linear, loss, local.seams().attention, local.seams().dropout};
    const auto records = run(plan, nullptr, [&](comm::ProcessGroup&, TrainerOptions& options) {
      options.source = source;
      options.seams = &seams;
    });
    for (const RunRecord& record : records) {
      const Comparison c = compare(reference, record);
      EXPECT_GT(c.max_rel_grad, 1e-3) << layout;
      EXPECT_NE(c.worst_parameter, "") << layout;
    }
  }
}

}  // namespace
}  // namespace lockstep::train
