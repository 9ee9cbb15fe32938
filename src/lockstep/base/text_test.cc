#include "lockstep/base/text.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"

namespace lockstep {
namespace {

TEST(Text, NearestName) {
  const std::vector<std::string> keys = {"layers", "hidden", "heads"};
  EXPECT_EQ(nearest_name("layrs", keys), "layers");
  EXPECT_EQ(nearest_name("head", keys), "heads");
  EXPECT_EQ(nearest_name("zzzzzzzz", keys), "");
}

TEST(Units, ParseSize) {
  EXPECT_EQ(parse_size("64", "f"), 64);
  EXPECT_EQ(parse_size("4K", "f"), 4096);
  EXPECT_EQ(parse_size("1.5M", "f"), 1572864);
  EXPECT_EQ(parse_size("3G", "f"), 3221225472);
  for (const char* wrong : {"", "x", "4Q", "-1", "4KK"}) EXPECT_THROW(parse_size(wrong, "f"), InvalidArgument) << wrong;
}

TEST(Problem, IsOneLineWithFieldValueRuleAndNearest) {
  EXPECT_EQ((Problem{"parallel.zero", "4", "must be 0, 1, 2 or 3", "3"}.message()),
            "parallel.zero = 4: must be 0, 1, 2 or 3 (nearest: 3)");
  EXPECT_EQ((Problem{"a", "1", "rule", ""}.message()), "a = 1: rule");
}

TEST(Check, NamesConditionAndPlace) {
  try {
    LOCKSTEP_CHECK(1 == 2, "because");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("1 == 2"), std::string::npos);
    EXPECT_EQ(error.exit_code(), 70);
  }
}

}  // namespace
}  // namespace lockstep
