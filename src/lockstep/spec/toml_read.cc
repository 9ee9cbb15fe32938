#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "lockstep/spec/fields.h"
#include "lockstep/spec/later.h"
#include "lockstep/spec/names.h"
#include "lockstep/spec/toml.h"
#include "lockstep/spec/toml_value.h"

namespace lockstep::spec {

namespace {

struct Key {
  std::string section, key;
  std::string name() const { return section + "." + key; }
};

// A value on one line, cut when long.
std::string one_line(const toml::node& node) {
  std::string line;
  if (const toml::table* table = node.as_table()) {
    line = table->empty() ? "{}" : "{...}";
  } else if (const toml::array* array = node.as_array()) {
    std::vector<std::string> elements;
    for (const toml::node& element : *array) elements.push_back(one_line(element));
    line = text("[", join(elements), "]");
  } else {
    node.visit([&](const auto& value) {
      if constexpr (toml::is_date<decltype(value)> || toml::is_time<decltype(value)> ||
                    toml::is_date_time<decltype(value)>) {
        line = text(value);
      } else if constexpr (toml::is_value<decltype(value)>) {
        line = toml_value(value.get());
      }
    });
  }
  constexpr size_t kLongest = 60;
  return line.size() <= kLongest ? line : line.substr(0, kLongest) + "...";
}

std::vector<Key> known_keys() {
  std::vector<Key> result;
  const RunPlan plan;
  for_each_field(
      plan, [&](const char* section, const char* key, const auto&, const char*) { result.push_back({section, key}); });
  return result;
}

// The same key in another section, or else the nearest key of this section, or else the nearest of all.
std::string nearest_key(const Key& wrong) {
  std::vector<std::string> here, all;
  for (const Key& known : known_keys()) {
    if (known.key == wrong.key) return known.name();
    if (known.section == wrong.section) here.push_back(known.key);
    all.push_back(known.name());
  }
  const std::string nearest = nearest_name(wrong.key, here);
  return nearest.empty() ? nearest_name(wrong.name(), all) : Key{wrong.section, nearest}.name();
}

// What a value of each type is called, and how it is taken from a node; false when the node holds something else.
std::string expected(int64_t) {
  return "must be a whole number";
}
bool take(const toml::node& node, int64_t& value) {
  if (!node.is_integer()) return false;
  value = node.as_integer()->get();
  return true;
}

std::string expected(double) {
  return "must be a number";
}
bool take(const toml::node& node, double& value) {
  if (!node.is_number()) return false;
  value = *node.value<double>();
  return true;
}

std::string expected(bool) {
  return "must be true or false";
}
bool take(const toml::node& node, bool& value) {
  if (!node.is_boolean()) return false;
  value = node.as_boolean()->get();
  return true;
}

std::string expected(const std::string&) {
  return "must be text in quotes";
}
bool take(const toml::node& node, std::string& value) {
  if (!node.is_string()) return false;
  value = node.as_string()->get();
  return true;
}

std::string expected(const std::vector<std::string>&) {
  return "must be a list of texts, as [\"a.txt\", \"folder\"]";
}
bool take(const toml::node& node, std::vector<std::string>& value) {
  value.assign(1, "");
  if (take(node, value[0])) return true;
  const toml::array* array = node.as_array();
  if (array == nullptr) return false;
  value.assign(array->size(), "");
  for (size_t i = 0; i < array->size(); ++i) {
    if (!take((*array)[i], value[i])) return false;
  }
  return true;
}

std::string expected(const std::array<double, 2>&) {
  return "must be two numbers, as [0.9, 0.95]";
}
bool take(const toml::node& node, std::array<double, 2>& value) {
  const toml::array* array = node.as_array();
  return array != nullptr && array->size() == 2 && take((*array)[0], value[0]) && take((*array)[1], value[1]);
}

std::string expected(const std::map<std::string, std::string>&) {
  return "must be a table of texts, as { vocab = \"none\" }";
}
bool take(const toml::node& node, std::map<std::string, std::string>& value) {
  const toml::table* table = node.as_table();
  if (table == nullptr) return false;
  value.clear();
  for (const auto& [key, element] : *table) {
    if (!take(element, value[std::string(key.str())])) return false;
  }
  return true;
}

class PlanReader {
 public:
  PlanReader(const toml::table& document, std::string_view source) : document_(document), source_(source) {}

  RunPlan read() {
    for (const auto& [section, node] : document_) check_section(std::string(section.str()), node);
    start_from_preset();
    for_each_field(plan_, [&](const char* section, const char* key, auto& value, const char*) {
      if (const toml::node* node = find(section, key)) read_value({section, key}, *node, value);
    });
    derive_widths();
    if (mistakes_.empty()) return plan_;
    if (all_unsupported_) throw Unsupported(join(mistakes_, "; "));
    throw InvalidArgument(join(mistakes_, "; "));
  }

 private:
  const toml::node* find(std::string_view section, std::string_view key) const {
    const toml::table* table = document_[section].as_table();
    return table == nullptr ? nullptr : table->get(key);
  }

  void refuse(const toml::node& node, const std::string& what) {
    const auto line = node.source().begin.line;  // 0: not from the file
    mistakes_.push_back(text(line == 0 ? "--set" : text(source_, ":", line), ": ", what));
  }

  void mistake(const toml::node& node, const Problem& problem) {
    all_unsupported_ = false;
    refuse(node, problem.message());
  }

  void unsupported(const toml::node& node, const Key& key, const std::string& nearest) {
    refuse(node, Problem{key.name(), one_line(node), "is not supported by this version", nearest}.message());
  }

  void check_section(const std::string& section, const toml::node& node) {
    std::vector<std::string> sections;
    for (const Key& known : known_keys()) sections.push_back(known.section);
    const toml::table* table = node.as_table();
    if (std::ranges::find(later_sections(), section) != later_sections().end()) {
      refuse(node, text("[", section, "] is not supported by this version"));
    } else if (table == nullptr) {
      mistake(node, {section, one_line(node), "keys stand in a section: section.key, or under [section]",
                     nearest_key({"", section})});
    } else if (std::ranges::find(sections, section) == sections.end()) {
      mistake(node, {text("[", section, "]"), one_line(node), "no such section", nearest_name(section, sections)});
    } else {
      for (const auto& [key, value] : *table) check_key({section, std::string(key.str())}, value);
    }
  }

  void check_key(const Key& key, const toml::node& node) {
    for (const Key& known : known_keys()) {
      if (known.name() == key.name()) return;
    }
    for (const LaterKey& later : later_keys()) {
      if (later.section != key.section || later.key != key.key) continue;
      if (one_line(node) != later.default_value) unsupported(node, key, std::string(later.default_value));
      return;
    }
    mistake(node, {key.name(), one_line(node), "no such key", nearest_key(key)});
  }

  void start_from_preset() {
    const toml::node* node = find("model", "preset");
    if (node == nullptr || !node->is_string() || node->as_string()->get().empty()) return;
    try {
      plan_.model = preset(node->as_string()->get());
    } catch (const InvalidArgument& error) {
      all_unsupported_ = false;
      refuse(*node, error.what());
    }
  }

  // Nobody who sets the number of heads alone means grouped queries.
  void derive_widths() {
    if (!plan_.model.preset.empty()) return;
    if (find("model", "kv_heads") == nullptr) plan_.model.kv_heads = plan_.model.heads;
    const int64_t hidden = plan_.model.hidden;
    const bool is_size = hidden > 0 && hidden < int64_t{1} << 60;  // else validation names hidden
    if (find("model", "ffn_hidden") == nullptr && is_size) plan_.model.ffn_hidden = 4 * hidden;
  }

  template <class Value>
  void read_value(const Key& key, const toml::node& node, Value& value) {
    if constexpr (std::is_enum_v<Value>) {
      read_enum(key, node, value);
    } else if constexpr (std::is_same_v<Value, mesh::Order>) {
      read_order(key, node, value);
    } else if (!take(node, value)) {
      mistake(node, {key.name(), one_line(node), expected(value), ""});
    }
  }

  template <class Enum>
  void read_enum(const Key& key, const toml::node& node, Enum& value) {
    std::string word;
    if (take(node, word)) {
      if (const auto found = from_name<Enum>(word)) {
        value = *found;
        return;
      }
    }
    mistake(node, {key.name(), one_line(node), text("must be one of ", join(spellings<Enum>())),
                   nearest_name(word, spellings<Enum>())});
  }

  void read_order(const Key& key, const toml::node& node, mesh::Order& order) {
    std::string word;
    if (!take(node, word)) return mistake(node, {key.name(), one_line(node), expected(word), to_string(mesh::kAxes)});
    try {
      order = mesh::parse_order(word);
    } catch (const InvalidArgument& error) {
      all_unsupported_ = false;
      refuse(node, error.what());
    }
  }

  const toml::table& document_;
  const std::string source_;
  RunPlan plan_;
  std::vector<std::string> mistakes_;
  bool all_unsupported_ = true;
};

toml::table parse_toml(std::string_view text, std::string_view source) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    throw InvalidArgument(lockstep::text(source, ":", at.line, ":", at.column, ": not TOML: ", error.description()));
  }
}

// The value as TOML if it is, else as a string.
toml::table parse_value(const std::string& value) {
  try {
    toml::table parsed = toml::parse("value = " + value);
    if (parsed.size() == 1) return parsed;
  } catch (const toml::parse_error&) {
  }
  return toml::table{{"value", value}};
}

void apply_override(toml::table& document, const std::string& assignment) {
  const size_t equals = assignment.find('='), dot = assignment.find('.');
  if (equals == std::string::npos || dot > equals) {
    const std::string word = assignment.substr(0, equals), nearest = nearest_key({"", word});
    throw InvalidArgument(text("--set ", assignment, ": must be section.key=value, as in ",
                               nearest.empty() ? "train.steps" : nearest, "=..."));
  }
  const std::string section = assignment.substr(0, dot), key = assignment.substr(dot + 1, equals - dot - 1);
  if (document[section].as_table() == nullptr) document.insert_or_assign(section, toml::table{});
  const toml::table parsed = parse_value(assignment.substr(equals + 1));
  parsed.get("value")->visit([&](const auto& value) { document[section].as_table()->insert_or_assign(key, value); });
}

}  // namespace

RunPlan parse_plan(std::string_view text, std::string_view source, std::span<const std::string> overrides) {
  toml::table document = parse_toml(text, source);
  for (const std::string& assignment : overrides) apply_override(document, assignment);
  return PlanReader(document, source).read();
}

RunPlan read_plan(const std::filesystem::path& file, std::span<const std::string> overrides) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream contents;
  if (std::filesystem::is_directory(file) || !(contents << in.rdbuf())) {
    throw InvalidArgument(
        text("configuration ", file.string(), ": cannot be read; name a TOML file, such as configs/shakespeare.toml"));
  }
  return parse_plan(contents.str(), file.string(), overrides);
}

}  // namespace lockstep::spec
