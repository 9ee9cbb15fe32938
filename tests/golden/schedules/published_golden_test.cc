// Bubble rates that the Zero Bubble paper prints, from the times it measured: by its definition, within a rank's span.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "golden.h"

namespace lockstep::golden {
namespace {

TEST(Published, BubbleRatesOfTheZeroBubblePaper) {
  std::istringstream lines(read("zero_bubble_table5.csv"));
  std::string line;
  std::getline(lines, line);  // the header
  int rows = 0;
  while (std::getline(lines, line)) {
    SCOPED_TRACE(line);
    std::ranges::replace(line, ',', ' ');
    std::istringstream cells(line);
    std::string model;
    int ranks = 0, microbatches = 0;
    double forward = 0, input_grad = 0, weight_grad = 0, transfer = 0;
    cells >> model >> ranks >> microbatches >> forward >> input_grad >> weight_grad >> transfer;
    for (const char* kind : {"1f1b", "zb_h1", "zb_h2"}) {
      double published = 0;
      ASSERT_TRUE(cells >> published);
      const schedule::Table table = schedule::make_table(kind, {ranks, microbatches});
      const auto simulation =
          simulate::simulate(table, {.duration = simulate::per_stage({.forward = {forward},
                                                                      .backward = {input_grad + weight_grad},
                                                                      .input_grad = {input_grad},
                                                                      .weight_grad = {weight_grad}},
                                                                     table.stages()),
                                     .transfer = transfer});
      EXPECT_NEAR(simulate::bubbles(simulation).of_span, published, 0.5e-4 * (1 + 1e-9)) << kind;
    }
    ++rows;
  }
  EXPECT_EQ(rows, 12);
}

}  // namespace
}  // namespace lockstep::golden
