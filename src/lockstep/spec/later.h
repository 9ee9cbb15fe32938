// Keys that the configuration will have and this version does not: refused by name rather than called
// unknown. A key at its default asks for nothing and is accepted.
#pragma once

#include <span>
#include <string_view>

namespace lockstep::spec {

struct LaterKey {
  std::string_view section, key;
  std::string_view default_value;  // as TOML; empty: no value is accepted
};
std::span<const LaterKey> later_keys();

std::span<const std::string_view> later_sections();

// Words of layout names, without their number: "cp".
std::span<const std::string_view> later_layout_words();

}  // namespace lockstep::spec
