// parallel.reduction = "fixed_tree" with sharded states and with tensor ranks: one order of additions, so the same
// bits.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/optim/clip.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/names.h"
#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

using spec::Precision;

// Clipped in every step, so that a norm of other bits would show in the weights.
spec::RunPlan tree_plan(std::string_view layout, Precision precision) {
  spec::RunPlan plan = small_plan();
  plan.train.precision = precision;
  plan.train.steps = 3;
  plan.train.clip_norm = 0.1;
  plan.parallel.bucket_mb = 0.01;
  plan.parallel.reduction = spec::Reduction::fixed_tree;
  return spec::apply(spec::parse_layout(layout), plan);
}

std::vector<Outcome> run(const spec::RunPlan& plan) {
  return train::run(plan, static_cast<int>(plan.parallel.data * plan.parallel.tensor));
}

TEST(FixedTree, TheNormHasTheSameBitsOnAnyRanks) {
  const at::Tensor whole = at::randn({10007}) * at::logspace(-12, 3, 10007);
  const auto pieces = whole.split(97);
  const double expected = optim::order_free_squared_norm({whole});
  for (const int ranks : {1, 2, 3}) {
    comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& world) {
      std::vector<at::Tensor> own;
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (static_cast<int>(i) % ranks == world.rank()) own.push_back(pieces[i]);
      }
      EXPECT_EQ(optim::order_free_squared_norm(own, &world), expected);
    });
  }
}

TEST(FixedTree, ShardedStatesHaveTheBitsOfThePlainLoop) {
  for (const Precision precision : {Precision::fp32, Precision::fp64, Precision::bf16, Precision::fp16}) {
    for (const char* layout : {"zero1", "zero2", "zero3", "dp2-zero1", "dp2-zero2", "dp2-zero3", "dp4-zero1",
                               "dp4-zero3", "dp4-zero2g2", "dp4-zero3g2", "dp4-zero2g1"}) {
      const spec::RunPlan plan = tree_plan(layout, precision);
      const RunRecord reference = reference_of(plan);
      EXPECT_GT(reference.steps.front().grad_norm, plan.train.clip_norm);
      for (const Outcome& rank : run(plan)) {
        const Comparison c = compare(reference, rank.record);
        EXPECT_TRUE(c.bitwise) << layout << " " << spec::name(precision) << " " << c.worst_parameter << " "
                               << c.worst_weight;
        EXPECT_EQ(c.rel_norm, 0) << layout << " " << spec::name(precision);
      }
    }
  }
}

// 6 micro-batches on 4 ranks: two ranks have two, and where ranks meet in each the others add nothing to theirs; 3
// on 2.
TEST(FixedTree, ShardedStatesHaveThemOfUnevenShares) {
  for (const auto& [layout, batch] :
       {std::pair("dp4-zero1", 6), std::pair("dp4-zero3", 6), std::pair("dp2-zero2", 3), std::pair("dp2-zero3", 3)}) {
    spec::RunPlan plan = tree_plan(layout, Precision::fp32);
    plan.train.global_batch = batch;
    const RunRecord reference = reference_of(plan);
    for (const Outcome& rank : run(plan)) EXPECT_TRUE(compare(reference, rank.record).bitwise) << layout;
  }
}

// The order shows: the same layouts that add micro-batches in turn have other bits.
TEST(FixedTree, OtherOrdersHaveOtherBits) {
  const spec::RunPlan plan = tree_plan("dp2-zero2", Precision::fp32);
  const RunRecord reference = reference_of(plan);
  spec::RunPlan fast = plan;
  fast.parallel.reduction = spec::Reduction::fast;
  for (const Outcome& rank : run(fast)) EXPECT_FALSE(compare(reference, rank.record).bitwise);
}

// Inside of a layer tensor ranks add in an order of their own, so one process has other bits; but on so many tensor
// ranks the data ranks and what they share change none.
TEST(FixedTree, DataLayoutsOfTheSameTensorRanksHaveTheSameBits) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const spec::RunPlan plan = tree_plan("tp2", precision);
    const RunRecord expected = run(plan).front().record;
    EXPECT_FALSE(compare(reference_of(plan), expected).bitwise);
    for (const char* layout :
         {"dp2-tp2", "dp4-tp2", "tp2-zero1", "dp2-tp2-zero1", "dp2-tp2-zero2", "dp2-tp2-zero3", "dp4-tp2-zero3g2"}) {
      for (const Outcome& rank : run(tree_plan(layout, precision))) {
        const Comparison c = compare(expected, rank.record);
        EXPECT_TRUE(c.bitwise) << layout << " " << spec::name(precision) << " " << c.worst_parameter;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::train
