// The pictures of docs/collectives.md are what draw() makes. LOCKSTEP_BLESS=1 rewrites them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/base/drawn_page.h"
#include "lockstep/collective/draw.h"

namespace lockstep::collective {
namespace {

using ::testing::HasSubstr;

std::filesystem::path page() {
  return std::filesystem::path(__FILE__).parent_path() / "../../../docs/collectives.md";
}

// "all_reduce ring 4 root 1 hosts 0 0 1 1"
Program asked_for(const std::string& words) {
  std::istringstream stream(words);
  std::string operation, algorithm, word;
  Shape shape;
  stream >> operation >> algorithm >> shape.ranks;
  while (stream >> word) {
    if (word == "root") stream >> shape.root;
    if (word == "hosts") {
      for (int host = 0; stream >> host;) shape.host_of_rank.push_back(host);
    }
  }
  return make_program(parse_operation(operation), algorithm, shape);
}

TEST(Page, ShowsWhatTheProgramsDo) {
  const std::string before = read_page(page());
  std::set<std::string> drawn;
  const std::string after = redrawn(before, [&](const std::string& words) {
    const Program program = asked_for(words);
    drawn.insert(program.algorithm);
    return draw(program);
  });
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_EQ(drawn.count(std::string(algorithm.name)), 1U) << algorithm.name << " has no picture";
  }
  if (std::getenv("LOCKSTEP_BLESS") != nullptr) {
    std::ofstream(page()) << after;
  } else {
    EXPECT_EQ(before, after) << "LOCKSTEP_BLESS=1 rewrites the page";
  }
}

TEST(Draw, NamesPairsOfAllToAllAndTheRoot) {
  const std::string exchange = draw(make_program(Operation::all_to_all, "pairwise", {.ranks = 3}));
  EXPECT_THAT(exchange, HasSubstr("round 1\n  0 --0>2--> 2    1 --1>0--> 0    2 --2>1--> 1\n"));
  const std::string gather = draw(make_program(Operation::gather, "naive", {.ranks = 2, .root = 1}));
  EXPECT_EQ(gather,
            "naive gather, 2 ranks, root 1\n"
            "\nbefore\n  piece    0  1\n  rank 0   a  .\n  rank 1   .  b\n"
            "\nround 0\n  0 --0--> 1\n  piece    0  1\n  rank 0   a  .\n  rank 1   a  b\n");
}

TEST(Draw, OneRankCopies) {
  EXPECT_THAT(draw(make_program(Operation::all_reduce, "ring", {.ranks = 1})), HasSubstr("copies inside ranks"));
}

}  // namespace
}  // namespace lockstep::collective
