#include "lockstep/spec/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::spec {
namespace {

using ::testing::HasSubstr;

template <class Error>
std::string refusal(std::string_view name) {
  try {
    parse_layout(name);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Layout, ReadsWhatItPrints) {
  for (const char* name : {"single",
                           "dp2",
                           "dp3",
                           "acc4",
                           "dp2-acc4",
                           "fixed_tree",
                           "dp4-fixed_tree",
                           "fp64",
                           "dp2-acc4-fixed_tree-fp64",
                           "dp1000000",
                           "tp2",
                           "tp4-sp",
                           "dp2-tp2-sp-acc2",
                           "recompute_sqrt",
                           "bf16",
                           "dp2-fixed_tree-fp16",
                           "dp2-acc4-recompute_full-fixed_tree-fp64",
                           "zero1",
                           "dp2-tp2-zero3",
                           "dp4-zero3g2-acc2"}) {
    EXPECT_EQ(to_string(parse_layout(name)), name);
  }
  EXPECT_EQ(parse_layout("dp2-acc4"), (Layout{.data = 2, .accumulate = 4}));
  EXPECT_EQ(parse_layout("dp2-acc4").world_size(), 2);
  EXPECT_EQ(parse_layout("dp3-tp2-sp"), (Layout{.data = 3, .tensor = 2, .sequence_parallel = true}));
  EXPECT_EQ(parse_layout("dp3-tp2-sp").world_size(), 6);
}

TEST(Layout, RefusesOtherSpellingsWithTheRightOne) {
  EXPECT_THAT(refusal<InvalidArgument>("acc4-dp2"), HasSubstr("(nearest: dp2-acc4)"));
  EXPECT_THAT(refusal<InvalidArgument>("dp2-dp2"), HasSubstr("(nearest: dp2)"));
  EXPECT_THAT(refusal<InvalidArgument>("single-dp2"), HasSubstr("(nearest: dp2)"));
  EXPECT_THAT(refusal<InvalidArgument>("dp02"), HasSubstr("(nearest: dp2)"));
  EXPECT_THAT(refusal<InvalidArgument>("dp1"), HasSubstr("(nearest: single)"));
  EXPECT_THAT(refusal<InvalidArgument>("dp2-fixedtree"), HasSubstr("\"fixedtree\" is no layout"));
  EXPECT_THAT(refusal<InvalidArgument>("dp2-fixedtree"), HasSubstr("(nearest: fixed_tree)"));
  EXPECT_THAT(refusal<InvalidArgument>("recompute_ful"), HasSubstr("(nearest: recompute_full)"));
  EXPECT_THAT(refusal<InvalidArgument>("fixed_tree-recompute_full"), HasSubstr("(nearest: recompute_full-fixed_tree)"));
  EXPECT_THAT(refusal<InvalidArgument>("recompute_none"), HasSubstr("is no layout"));
  for (const char* name : {"", "dp", "dp0", "dp-2", "dp2-", "-dp2", "dp99999999999999999999", "acc", "acc0", "dp2x",
                           "zero", "zero0", "zerog2", "zero3g", "zero3g0"}) {
    EXPECT_THAT(refusal<InvalidArgument>(name), HasSubstr("is no layout")) << name;
  }
}

TEST(Layout, NamesPipelines) {
  for (const char* name : {"pp2", "dp2-tp2-sp-pp2-zero2-1f1b-acc4", "pp4-v2-interleaved", "pp2-recompute_stage",
                           "pp2-zb_v", "dp2-pp2-v2-looped_bfs-fp64"}) {
    EXPECT_EQ(to_string(parse_layout(name)), name);
  }
  EXPECT_EQ(parse_layout("dp3-tp2-pp4-v2-interleaved").world_size(), 24);
  EXPECT_THAT(refusal<InvalidArgument>("pp4-interleaved-v2"), HasSubstr("(nearest: pp4-v2-interleaved)"));
  // Chunks that are not named are those that the schedule usually has.
  EXPECT_EQ(apply(parse_layout("pp2-zb_v"), {}).parallel.chunks, 2);
  EXPECT_EQ(apply(parse_layout("pp2-v3-interleaved"), {}).parallel.chunks, 3);
  EXPECT_EQ(to_string(layout_of(apply(parse_layout("pp2-zb_v"), {}), 2)), "pp2-v2-zb_v");
}

TEST(Layout, RefusesWordsOfLaterVersionsByName) {
  for (const char* name : {"dp2-cp2", "cp2", "ep2"}) {
    EXPECT_THAT(refusal<Unsupported>(name), HasSubstr("is not supported by this version")) << name;
  }
}

TEST(Layout, AppliesToAPlan) {
  RunPlan plan;
  plan.train.global_batch = 24;
  plan.train.microbatch = 3;
  const RunPlan applied = apply(parse_layout("dp2-acc4-fixed_tree-fp64"), plan);
  EXPECT_EQ(applied.parallel.data, 2);
  EXPECT_EQ(applied.train.microbatch, 3);
  EXPECT_EQ(applied.parallel.reduction, Reduction::fixed_tree);
  EXPECT_EQ(applied.train.precision, Precision::fp64);
  EXPECT_EQ(apply(parse_layout("dp3-acc2"), plan).train.microbatch, 4);
  EXPECT_EQ(apply(parse_layout("dp3"), plan).train.microbatch, 3);
  const RunPlan split = apply(parse_layout("dp2-tp2-sp-acc2"), plan);
  EXPECT_EQ(split.parallel.tensor, 2);
  EXPECT_TRUE(split.parallel.sequence_parallel);
  EXPECT_EQ(split.train.microbatch, 6);
  EXPECT_EQ(to_string(layout_of(split, 4)), "dp2-tp2-sp");
}

TEST(Layout, KeepsWhatItDoesNotName) {
  RunPlan plan;
  plan.parallel.reduction = Reduction::fixed_tree;
  plan.train.precision = Precision::fp64;
  const RunPlan applied = apply(parse_layout("dp2"), plan);
  EXPECT_EQ(applied.parallel.reduction, Reduction::fixed_tree);
  EXPECT_EQ(applied.train.precision, Precision::fp64);
  EXPECT_EQ(to_string(layout_of(applied, 2)), "dp2-fixed_tree-fp64");
  EXPECT_EQ(to_string(layout_of(RunPlan{}, 1)), "single");
}

TEST(Layout, AccumulationMustCutTheBatchIntoWholeMicrobatches) {
  RunPlan plan;
  plan.train.global_batch = 24;
  try {
    apply(parse_layout("dp2-acc5"), plan);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "layout = \"dp2-acc5\": train.global_batch = 24 must be a multiple of 2 data ranks times 5 micro-batches "
        "(nearest: acc4 or 6)");
  }
}

}  // namespace
}  // namespace lockstep::spec
