#include "lockstep/spec/microbatches.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::spec {
namespace {

TEST(Microbatches, AreDealtInContiguousRunsTheFirstOneLonger) {
  EXPECT_EQ(microbatches_of_rank(5, {0, 2}), (mesh::Range{0, 3}));
  EXPECT_EQ(microbatches_of_rank(5, {1, 2}), (mesh::Range{3, 2}));
  EXPECT_EQ(num_microbatches({.global_batch = 24, .microbatch = 3}), 8);
}

// The tree as a text: "((0+1)+2)". Pairs neighbours, level by level; one without a neighbour is passed on.
std::string pairwise(std::vector<std::string> terms) {
  while (terms.size() > 1) {
    std::vector<std::string> sums;
    for (size_t i = 0; i < terms.size(); i += 2) {
      sums.push_back(i + 1 < terms.size() ? "(" + terms[i] + "+" + terms[i + 1] + ")" : terms[i]);
    }
    terms = sums;
  }
  return terms[0];
}

std::string tree(int64_t first, int64_t count) {
  std::vector<std::string> leaves;
  for (int64_t m = first; m < first + count; ++m) leaves.push_back(text(m));
  return pairwise(leaves);
}

// Each rank adds its own micro-batches pairwise, then the ranks' sums are added pairwise: the rule accepts exactly the
// dealings for which this is the tree over all micro-batches.
TEST(FixedTree, FitsWhenTheTreeOverRanksContinuesTheTreeWithinThem) {
  for (int64_t count = 1; count <= 40; ++count) {
    for (int ranks = 1; ranks <= 10; ++ranks) {
      bool same = count >= ranks;
      if (same) {
        std::vector<std::string> of_ranks;
        for (int rank = 0; rank < ranks; ++rank) {
          const mesh::Range run = microbatches_of_rank(count, {rank, ranks});
          of_ranks.push_back(tree(run.offset, run.size));
        }
        same = pairwise(of_ranks) == tree(0, count);
      }
      EXPECT_EQ(fits_fixed_tree(count, ranks), same) << count << " micro-batches on " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace lockstep::spec
