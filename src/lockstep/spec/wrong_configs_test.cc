// Reads tests/errors/wrong_configs.toml and holds every message to what stands there.
#include <gtest/gtest.h>
#include <toml++/toml.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/toml.h"

namespace lockstep::spec {
namespace {

std::filesystem::path errors_folder() {
  return std::filesystem::path(__FILE__).parent_path() / "../../../tests/errors";
}

void load(const toml::table& wrong) {
  std::vector<std::string> overrides;
  if (const toml::array* set = wrong["set"].as_array()) {
    for (const toml::node& element : *set) overrides.push_back(*element.value<std::string>());
  }
  RunPlan plan;
  if (const auto config = wrong["config"].value<std::string>()) {
    plan = parse_plan(*config, "config.toml", overrides);
  } else {
    plan = read_plan(errors_folder() / "base.toml", overrides);
  }
  int ranks = wrong["ranks"].value_or(1);
  if (const auto name = wrong["layout"].value<std::string>()) {
    const Layout layout = parse_layout(*name);
    plan = apply(layout, plan);
    ranks = layout.world_size();
  }
  refuse(validate(plan, ranks));
}

TEST(WrongConfigs, TheBaseIsRight) {
  EXPECT_NO_THROW(load(toml::table{}));
}

TEST(WrongConfigs, GetTheirMessages) {
  const toml::table document = toml::parse_file((errors_folder() / "wrong_configs.toml").string());
  const toml::array& cases = *document["case"].as_array();
  EXPECT_GE(cases.size(), 25u);
  for (const toml::node& element : cases) {
    const toml::table& wrong = *element.as_table();
    SCOPED_TRACE(*wrong["name"].value<std::string>());
    try {
      load(wrong);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      const std::string line = error.what();
      if (const auto begins = wrong["begins"].value<std::string>()) {
        EXPECT_EQ(line.substr(0, begins->size()), *begins);
      } else {
        EXPECT_EQ(line, *wrong["message"].value<std::string>());
      }
      EXPECT_EQ(error.exit_code(), 2) << error.type_name();
      EXPECT_EQ(line.find('\n'), std::string::npos) << "a message is one line";
    }
  }
}

}  // namespace
}  // namespace lockstep::spec
