#include "lockstep/spec/toml_value.h"

#include <charconv>
#include <iomanip>
#include <sstream>

#include "lockstep/base/text.h"

namespace lockstep::spec {

std::string toml_value(int64_t value) {
  return text(value);
}

std::string toml_value(bool value) {
  return value ? "true" : "false";
}

// The shortest digits that read back as the same number; TOML tells floats from integers by their point or exponent.
std::string toml_value(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  std::string result(digits.data(), end);
  return result.find_first_of(".einf") == std::string::npos ? result + ".0" : result;
}

std::string toml_value(const std::string& value) {
  std::ostringstream out;
  out << '"';
  for (const char letter : value) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out << '\\' << letter;
    } else if (byte < 0x20 || byte == 0x7f) {
      out << "\\u" << std::hex << std::setw(4) << std::setfill('0') << static_cast<int>(byte);
    } else {
      out << letter;
    }
  }
  out << '"';
  return out.str();
}

std::string toml_value(const std::vector<std::string>& value) {
  std::vector<std::string> quoted;
  for (const std::string& element : value) quoted.push_back(toml_value(element));
  return text("[", join(quoted), "]");
}

std::string toml_value(const std::array<double, 2>& value) {
  return text("[", toml_value(value[0]), ", ", toml_value(value[1]), "]");
}

std::string toml_value(const mesh::Order& order) {
  return toml_value(to_string(order));
}

std::string toml_value(const std::map<std::string, std::string>& value) {
  std::vector<std::string> entries;
  for (const auto& [key, element] : value) entries.push_back(text(toml_value(key), " = ", toml_value(element)));
  return entries.empty() ? "{}" : text("{ ", join(entries), " }");
}

}  // namespace lockstep::spec
