#include "lockstep/spec/toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/spec/fields.h"
#include "lockstep/spec/names.h"

namespace lockstep::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunPlan parse(const std::string& contents, const std::vector<std::string>& overrides = {}) {
  return parse_plan(contents, "test.toml", overrides);
}

TEST(ParsePlan, AnEmptyFileGivesTheDefaults) {
  EXPECT_EQ(to_toml(parse("")), to_toml(RunPlan{}));
}

TEST(ParsePlan, SingleFieldsOverrideThePreset) {
  const RunPlan plan = parse("[model]\nlayers = 2\npreset = \"gpt2-124m\"\n");
  EXPECT_EQ(plan.model.preset, "gpt2-124m");
  EXPECT_EQ(plan.model.layers, 2);
  EXPECT_EQ(plan.model.hidden, 768);
  EXPECT_EQ(plan.model.ffn_hidden, 3072);
}

TEST(ParsePlan, OverridesComeLastAndMayNameThePreset) {
  const RunPlan plan = parse("[model]\nlayers = 2\n[train]\nlr = 0.5\n",
                             {"model.preset=llama-tiny", "train.lr=1e-3", "train.lr=2e-3", "data.path=a b.txt",
                              "train.betas=[0.8, 0.9]", "parallel.overlap=false", "run.device=\"auto\""});
  EXPECT_EQ(plan.model.norm, Norm::rmsnorm);
  EXPECT_EQ(plan.model.layers, 2);
  EXPECT_EQ(plan.train.lr, 2e-3);
  EXPECT_THAT(plan.data.path, ElementsAre("a b.txt"));
  EXPECT_EQ(plan.train.betas, (std::array{0.8, 0.9}));
  EXPECT_FALSE(plan.parallel.overlap);
  EXPECT_EQ(plan.run.device, DeviceChoice::automatic);
}

TEST(ParsePlan, WidthsFollowHeadsAndHiddenWithoutAPreset) {
  RunPlan plan = parse("[model]\nhidden = 96\nheads = 6\n");
  EXPECT_EQ(plan.model.kv_heads, 6);
  EXPECT_EQ(plan.model.ffn_hidden, 384);
  plan = parse("[model]\nhidden = 96\nheads = 6\nkv_heads = 3\nffn_hidden = 100\n");
  EXPECT_EQ(plan.model.kv_heads, 3);
  EXPECT_EQ(plan.model.ffn_hidden, 100);
  plan = parse("[model]\npreset = \"llama-3-8b\"\nheads = 16\n");
  EXPECT_EQ(plan.model.kv_heads, 8);
}

TEST(ParsePlan, AKeyOfALaterVersionMayAskForNothing) {
  const RunPlan plan = parse("[parallel]\ncontext = 1\nexpert = 1\n");
  EXPECT_EQ(to_toml(plan), to_toml(RunPlan{}));
  EXPECT_THROW(parse("[parallel]\ncontext = 2\n"), Unsupported);
  EXPECT_THROW(parse("", {"parallel.context=2"}), Unsupported);
  EXPECT_THROW(parse("[parallel]\ncontext = 2\nfoo = 1\n"), InvalidArgument) << "one of the mistakes is a mistake";
}

TEST(ParsePlan, ListsEveryMistake) {
  try {
    parse("[train]\nsteps = 1.5\nlrr = 1\n\n[model]\nnorm = \"rms\"\n", {"train.seed=x"});
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "test.toml:3: train.lrr = 1: no such key (nearest: train.lr); "
                 "test.toml:6: model.norm = \"rms\": must be one of layernorm, rmsnorm; "
                 "test.toml:2: train.steps = 1.5: must be a whole number; "
                 "--set: train.seed = \"x\": must be a whole number");
  }
}

TEST(ReadPlan, NamesTheFileThatCannotBeRead) {
  for (const char* path : {"/nonexistent/run.toml", "/"}) {
    try {
      read_plan(path);
      FAIL() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(text("configuration ", path, ": cannot be read")));
    }
  }
}

// Random values of every type a field has.
struct Randomize {
  std::mt19937_64& random;
  void operator()(int64_t& value) const { value = static_cast<int64_t>(random() >> (random() % 63)); }
  void operator()(bool& value) const { value = random() % 2 == 0; }
  void operator()(double& value) const {
    value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 130);
  }
  void operator()(std::string& value) const {
    constexpr std::string_view kLetters = "ab \"\\#'\n\t=[]\x7f\xc3\xa9";
    value.clear();
    for (size_t n = random() % 8; n > 0; --n) value += kLetters[random() % (kLetters.size() - 2)];
    if (random() % 4 == 0) value += kLetters.substr(kLetters.size() - 2);  // an accented letter in UTF-8
  }
  void operator()(std::vector<std::string>& value) const {
    value.assign(random() % 4, "");
    for (std::string& element : value) (*this)(element);
  }
  void operator()(std::array<double, 2>& value) const {
    for (double& element : value) (*this)(element);
  }
  void operator()(std::map<std::string, std::string>& value) const {
    value.clear();
    for (size_t n = random() % 4; n > 0; --n) {
      std::string key;
      (*this)(key);
      (*this)(value[key]);
    }
  }
  void operator()(mesh::Order& value) const { std::ranges::shuffle(value, random); }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void operator()(Enum& value) const {
    value = names_of(value)[random() % names_of(value).size()].second;
  }
};

// Every value, numbers by their bits.
std::string fingerprint(const RunPlan& plan) {
  std::string out;
  for_each_field(plan, [&](const char*, const char* key, const auto& value, const char*) {
    using Value = std::decay_t<decltype(value)>;
    out += text("\n", key, "=");
    if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
      out += join(value, "|");
    } else if constexpr (std::is_same_v<Value, std::map<std::string, std::string>>) {
      for (const auto& [name, element] : value) out += text(name, "|", element, "|");
    } else if constexpr (std::is_same_v<Value, double> || std::is_same_v<Value, std::array<double, 2>>) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else if constexpr (std::is_same_v<Value, mesh::Order>) {
      out += to_string(value);
    } else if constexpr (std::is_enum_v<Value>) {
      out += name(value);
    } else {
      out += text(value);
    }
  });
  return out;
}

TEST(ToToml, ReadsBackAsTheSamePlan) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    RunPlan plan;
    for_each_field(plan, [&](const char*, const char*, auto& value, const char*) { Randomize{random}(value); });
    plan.model.preset = seed % 2 == 0 ? "" : preset_names()[seed % preset_names().size()];
    ASSERT_EQ(fingerprint(parse(to_toml(plan))), fingerprint(plan)) << "seed " << seed;
  }
}

// No value of any key, alone or with another, gets past the user's own errors: no overflow, no internal error.
TEST(ParsePlan, ExtremeValuesAreAcceptedOrRefusedButNothingElse) {
  const std::vector<std::string> values = {"0",
                                           "-1",
                                           "1",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "4611686018427387904",
                                           "1e308",
                                           "-0.0",
                                           "inf",
                                           "nan",
                                           "\"\"",
                                           "\"single\"",
                                           "[]",
                                           "[[1]]",
                                           "{}",
                                           "{ a = 1 }",
                                           "true"};
  std::mt19937 random(1);
  const std::vector<FieldHelp> fields = configuration_help();
  int accepted = 0, refused = 0;
  for (int i = 0; i < 6000; ++i) {
    std::vector<std::string> overrides = {"data.format=synthetic"};
    for (unsigned n = 1 + random() % 2; n > 0; --n) {
      overrides.push_back(fields[random() % fields.size()].key + "=" + values[random() % values.size()]);
    }
    try {
      refuse(validate(parse("", overrides), 1 + static_cast<int>(random() % 4)));
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << join(overrides) << ": " << error.what();
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

TEST(ConfigurationHelp, HasAMeaningForEveryKeyOnce) {
  std::vector<std::string> keys;
  for (const FieldHelp& field : configuration_help()) {
    EXPECT_FALSE(field.meaning.empty()) << field.key;
    EXPECT_THAT(keys, ::testing::Not(::testing::Contains(field.key)));
    keys.push_back(field.key);
  }
  EXPECT_THAT(keys, ::testing::Contains("train.global_batch"));
}

}  // namespace
}  // namespace lockstep::spec
