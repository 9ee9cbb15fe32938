#include "lockstep/collective/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::collective {
namespace {

using ::testing::HasSubstr;

std::string what(std::string_view table) {
  try {
    parse_rules(table);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Choose, TheBuiltInTableServesEveryCallWithAnAlgorithmThatThereIs) {
  for (int operation = 0; operation < kOperations; ++operation) {
    for (const int64_t bytes : {int64_t{0}, int64_t{8192}, int64_t{8193}, int64_t{1} << 50}) {
      for (const int ranks : {1, 2, 16, 17, 100000}) {
        for (const int hosts : {1, 2}) {
          const Operation each = static_cast<Operation>(operation);
          const std::string algorithm = choose({each, bytes, ranks, hosts});
          EXPECT_EQ(make_program(each, algorithm, {.ranks = 3}).algorithm, algorithm);
        }
      }
    }
  }
}

TEST(Choose, TheBuiltInTableHasASumThatIsRoundedOnceForEveryCall) {
  for (const Operation operation : {Operation::all_reduce, Operation::reduce_scatter, Operation::reduce}) {
    for (const int64_t bytes : {int64_t{0}, int64_t{8193}}) {
      for (const int ranks : {2, 16, 17}) {
        for (const int hosts : {1, 2}) {
          const std::string algorithm = choose({operation, bytes, ranks, hosts, /*round_once=*/true});
          EXPECT_EQ(make_program(operation, algorithm, {.ranks = 4, .host_of_rank = {0, 1, 0, 1}}).rounding,
                    Rounding::once);
        }
      }
    }
  }
}

TEST(Choose, SumsToBeRoundedOnceTakeTheBackendsOwnWayOnlyWhereThatDoes) {
  const RuleTable rules = parse_rules("all_reduce one_host 1.. .. native\nall_reduce one_host 1.. .. direct\n");
  Request request{.bytes = 4, .ranks = 2, .round_once = true};
  EXPECT_EQ(choose(request, rules), "direct");
  request.native_rounds_once = true;
  EXPECT_EQ(choose(request, rules), kNative);
}

TEST(Algorithms, RoundAlikeOnEveryShape) {
  for (const Algorithm& each : algorithms()) {
    for (const Shape& shape : {Shape{.ranks = 2}, Shape{.ranks = 5, .host_of_rank = {0, 0, 1, 1, 2}}}) {
      EXPECT_EQ(each.make(shape).rounding, rounding(each)) << name(each.operation) << " " << each.name;
    }
  }
}

TEST(Choose, TakesTheFirstRuleThatFits) {
  const RuleTable rules = parse_rules(
      "# measured\n"
      "all_reduce one_host 2..4 ..64K direct   # small\n"
      "\n"
      "all_reduce one_host 1.. .. ring\n"
      "all_reduce hosts ..8 ..1000 recursive_whole\n");
  const auto chosen = [&](int64_t bytes, int ranks, int hosts) {
    return choose({Operation::all_reduce, bytes, ranks, hosts}, rules);
  };
  EXPECT_EQ(chosen(65536, 4, 1), "direct");
  EXPECT_EQ(chosen(65537, 4, 1), "ring");
  EXPECT_EQ(chosen(1, 5, 1), "ring");
  EXPECT_EQ(chosen(1000, 8, 2), "recursive_whole");
  EXPECT_THROW(chosen(1001, 8, 2), InvalidArgument);
  EXPECT_THROW(choose({Operation::broadcast, 1, 2, 1}, rules), InvalidArgument);
}

TEST(RuleTable, IsReadAsItIsWritten) {
  EXPECT_EQ(parse_rules(to_string(builtin_rules())), builtin_rules());
}

TEST(RuleTable, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(what("\nall_reduce one_host 1.. .. rign"),
              HasSubstr("line 2: all_reduce has no algorithm rign (it has native, naive, direct"));
  EXPECT_THAT(what("all_reduce 1.. .. ring"), HasSubstr("line 1: must have operation, one_host or hosts"));
  EXPECT_THAT(what("all_reduce host 1.. .. ring"), HasSubstr("host must be one_host or hosts"));
  EXPECT_THAT(what("all_reduce hosts 0.. .. ring"), HasSubstr("0 is no number of ranks"));
  EXPECT_THAT(what("all_reduce hosts 3x.. .. ring"), HasSubstr("3x is no number of ranks"));
  EXPECT_THAT(what("all_reduce hosts 3 .. ring"), HasSubstr("3 must be a range"));
  EXPECT_THAT(what("all_reduce hosts 1.. 4..8 ring"), HasSubstr("4..8 must begin with .."));
  EXPECT_THAT(what("all_reduce hosts 1.. ..8Q ring"), HasSubstr("line 1"));
  EXPECT_THAT(what("reduce_all hosts 1.. .. ring"), HasSubstr("operation = reduce_all: must be one of broadcast"));
}

}  // namespace
}  // namespace lockstep::collective
