// Traffic of programs against closed forms and against published figures.
#include "lockstep/collective/count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

namespace lockstep::collective {
namespace {

using ::testing::Each;

std::vector<Traffic> traffic(Operation operation, std::string_view algorithm, int ranks, int64_t elements,
                             int64_t element_bytes = 1) {
  const Program program = make_program(operation, algorithm, {.ranks = ranks});
  return count(program, piece_sizes(program, elements), element_bytes);
}

int64_t most_bytes(const std::vector<Traffic>& by_rank) {
  return std::ranges::max_element(by_rank, {}, &Traffic::bytes_sent)->bytes_sent;
}

Traffic sum(const std::vector<Traffic>& by_rank) {
  Traffic total;
  for (const Traffic& each : by_rank) total += each;
  return total;
}

int log2_up(int ranks) {
  return std::bit_width(static_cast<unsigned>(ranks - 1));
}

TEST(Count, WhatIsSentIsReceived) {
  for (const Algorithm& algorithm : algorithms()) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const Traffic total = sum(traffic(algorithm.operation, algorithm.name, ranks, 1000));
      EXPECT_EQ(total.messages_sent, total.messages_received) << algorithm.name;
      EXPECT_EQ(total.bytes_sent, total.bytes_received) << algorithm.name;
    }
  }
}

TEST(Count, EmptyMessagesAreNotSent) {
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_THAT(traffic(algorithm.operation, algorithm.name, 5, 0), Each(Traffic{})) << algorithm.name;
  }
  // One element on four ranks: a single piece goes round.
  EXPECT_EQ(sum(traffic(Operation::all_reduce, "ring", 4, 1)).messages_sent, 6);
}

// p ranks, S bytes: the vector of broadcast, reduce and all_reduce; one rank's block otherwise.
TEST(Count, EqualsTheClosedFormsOnEveryRank) {
  for (int p = 2; p <= 16; ++p) {
    const int64_t n = 12LL * p, bytes = 4, size = n * bytes;
    const auto same = [&](int64_t messages, int64_t sent) { return Each(Traffic{messages, sent, messages, sent}); };
    const auto of = [&](Operation operation, std::string_view algorithm) {
      return traffic(operation, algorithm, p, n, bytes);
    };
    using enum Operation;
    SCOPED_TRACE(p);
    EXPECT_THAT(of(all_reduce, "ring"), same(2 * (p - 1), 2 * (p - 1) * size / p));
    EXPECT_THAT(of(all_reduce, "direct"), same(2 * (p - 1), 2 * (p - 1) * size / p));
    EXPECT_THAT(of(all_reduce, "direct_whole"), same(p - 1, (p - 1) * size));
    for (const std::string_view algorithm : {"ring", "direct"}) {
      EXPECT_THAT(of(reduce_scatter, algorithm), same(p - 1, (p - 1) * size)) << algorithm;
      EXPECT_THAT(of(all_gather, algorithm), same(p - 1, (p - 1) * size)) << algorithm;
    }
    for (const std::string_view algorithm : {"pairwise", "direct"}) {
      EXPECT_THAT(of(all_to_all, algorithm), same(p - 1, (p - 1) * size)) << algorithm;
    }
    if (std::has_single_bit(static_cast<unsigned>(p))) {
      EXPECT_THAT(of(all_reduce, "recursive"), same(2 * log2_up(p), 2 * (p - 1) * size / p));
      EXPECT_THAT(of(all_reduce, "recursive_whole"), same(log2_up(p), log2_up(p) * size));
      EXPECT_THAT(of(reduce_scatter, "recursive"), same(log2_up(p), (p - 1) * size));
      EXPECT_THAT(of(all_gather, "recursive"), same(log2_up(p), (p - 1) * size));
    }
    EXPECT_EQ(most_bytes(of(all_reduce, "naive")), (p - 1) * size);
    EXPECT_EQ(most_bytes(of(reduce_scatter, "naive")), p * size);
    EXPECT_EQ(most_bytes(of(all_gather, "naive")), p * (p - 1) * size);
    EXPECT_EQ(most_bytes(of(all_to_all, "naive")), p * (p - 1) * size);
    EXPECT_EQ(most_bytes(of(reduce, "binomial_tree")), size);
    EXPECT_LE(most_bytes(of(gather, "binomial_tree")), p * size / 2);
    EXPECT_EQ(most_bytes(of(reduce, "ring")), size);
    EXPECT_EQ(of(broadcast, "naive")[0], (Traffic{p - 1, (p - 1) * size, 0, 0}));
    EXPECT_EQ(of(broadcast, "binomial_tree")[0], (Traffic{log2_up(p), log2_up(p) * size, 0, 0}));
    EXPECT_EQ(of(broadcast, "ring")[0], (Traffic{p, size, 0, 0}));
    EXPECT_EQ(of(scatter, "binomial_tree")[0], (Traffic{log2_up(p), (p - 1) * size, 0, 0}));
    EXPECT_EQ(of(gather, "binomial_tree")[0], (Traffic{0, 0, log2_up(p), (p - 1) * size}));
  }
}

TEST(Count, RoundsOfTheAlgorithms) {
  const auto rounds = [](Operation operation, std::string_view algorithm, int ranks) {
    return make_program(operation, algorithm, {.ranks = ranks}).rounds;
  };
  for (int p = 2; p <= 17; ++p) {
    const int fold = std::has_single_bit(static_cast<unsigned>(p)) ? 0 : 2;
    const int log2_down = std::bit_width(static_cast<unsigned>(p)) - 1;
    EXPECT_EQ(rounds(Operation::all_reduce, "ring", p), 2 * (p - 1));
    EXPECT_EQ(rounds(Operation::all_reduce, "binomial_tree", p), 2 * log2_up(p));
    EXPECT_EQ(rounds(Operation::all_reduce, "recursive", p), 2 * log2_down + fold);
    EXPECT_EQ(rounds(Operation::all_reduce, "recursive_whole", p), log2_down + fold);
    EXPECT_EQ(rounds(Operation::all_reduce, "direct", p), 2);
    EXPECT_EQ(rounds(Operation::all_to_all, "pairwise", p), p - 1);
  }
}

TEST(Count, HierarchicalSendsTheLeastBetweenHosts) {
  using enum Operation;
  const std::vector<int> hosts = {0, 0, 1, 1};
  const int64_t n = 1000, bytes = 4;
  const auto leaving = [&](Operation operation, std::string_view algorithm) {
    const Program program = make_program(operation, algorithm, {.ranks = 4, .host_of_rank = hosts});
    return bytes_leaving_host(program, piece_sizes(program, n), bytes, hosts, 0);
  };
  EXPECT_EQ(leaving(all_reduce, "hierarchical"), n * bytes);
  EXPECT_EQ(leaving(all_reduce, "ring"), n * bytes * 3 / 2);
  EXPECT_EQ(leaving(broadcast, "hierarchical"), n * bytes);
  EXPECT_EQ(leaving(broadcast, "naive"), 2 * n * bytes);
  EXPECT_EQ(leaving(all_gather, "hierarchical"), 2 * n * bytes);
  EXPECT_EQ(leaving(all_gather, "direct"), 4 * n * bytes);
  EXPECT_EQ(leaving(reduce_scatter, "hierarchical"), 2 * n * bytes);
  EXPECT_EQ(leaving(all_to_all, "hierarchical"), 4 * n * bytes);
}

// Figures of document 1 of docs/documents.md, "CS336 Lecture 8", its chapter on collectives. S is what one rank
// contributes or, of broadcast, scatter and reduce_scatter, receives.
TEST(Golden, BytesThatTheDocumentsGive) {
  using enum Operation;
  // 13B parameters in fp16, 4 ranks: 39 GB. The text speaks of 8 cards and computes with 4; with 8 it is 45.5 GB.
  EXPECT_EQ(most_bytes(traffic(all_reduce, "ring", 4, 13'000'000'000, 2)), 39'000'000'000);
  EXPECT_EQ(most_bytes(traffic(all_reduce, "ring", 8, 13'000'000'000, 2)), 45'500'000'000);
  EXPECT_EQ(most_bytes(traffic(all_gather, "ring", 4, 1)), 3);

  const int64_t p = 4, size = 1200;
  struct Row {
    Operation operation;
    std::string_view algorithm;
    int64_t elements, busiest, total;
  };
  for (const Row& row : {
           Row{broadcast, "naive", size, (p - 1) * size, (p - 1) * size},
           Row{broadcast, "ring", size, size, (p - 1) * size},
           Row{scatter, "naive", size, (p - 1) * size, (p - 1) * size},  // the text prints S for the root
           Row{gather, "naive", size, size, (p - 1) * size},
           Row{reduce, "naive", size, size, (p - 1) * size},
           Row{all_gather, "ring", size, (p - 1) * size, p * (p - 1) * size},
           Row{reduce_scatter, "ring", size, (p - 1) * size, p * (p - 1) * size},
           Row{all_reduce, "ring", size, 2 * (p - 1) * size / p, 2 * (p - 1) * size},
           // A rank's buffer is of `size` here, p blocks.
           Row{all_to_all, "pairwise", size / p, (p - 1) * size / p, (p - 1) * size},
       }) {
    const std::vector<Traffic> by_rank = traffic(row.operation, row.algorithm, static_cast<int>(p), row.elements);
    EXPECT_EQ(most_bytes(by_rank), row.busiest) << name(row.operation);
    EXPECT_EQ(sum(by_rank).bytes_sent, row.total) << name(row.operation);
  }
}

}  // namespace
}  // namespace lockstep::collective
