#include "lockstep/spec/later.h"

#include <array>

namespace lockstep::spec {

std::span<const LaterKey> later_keys() {
  static constexpr auto kKeys = std::to_array<LaterKey>({
      {"model", "experts", "0"},
      {"model", "top_k", ""},
      {"model", "capacity_factor", ""},
      {"parallel", "context", "1"},
      {"parallel", "expert", "1"},
      {"run", "checkpoint_every", "0"},
  });
  return kKeys;
}

std::span<const std::string_view> later_sections() {
  static constexpr auto kSections = std::to_array<std::string_view>({"cluster"});
  return kSections;
}

std::span<const std::string_view> later_layout_words() {
  static constexpr auto kWords = std::to_array<std::string_view>({"cp", "ep"});
  return kWords;
}

}  // namespace lockstep::spec
