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
      {"parallel", "pipeline", "1"},
      {"parallel", "schedule", "\"1f1b\""},
      {"parallel", "chunks", "1"},
      {"parallel", "stages", "\"\""},
      {"run", "checkpoint_every", "0"},
  });
  return kKeys;
}

std::span<const LaterValue> later_values() {
  static constexpr auto kValues = std::to_array<LaterValue>({
      {"parallel", "recompute", "stage"},
  });
  return kValues;
}

std::span<const std::string_view> later_sections() {
  static constexpr auto kSections = std::to_array<std::string_view>({"cluster"});
  return kSections;
}

std::span<const std::string_view> later_layout_words() {
  static constexpr auto kWords =
      std::to_array<std::string_view>({"cp", "ep", "pp", "v", "naive", "gpipe", "1f1b", "interleaved", "looped_bfs",
                                       "zb_h1", "zb_h2", "interleaved_zb", "zb_v", "dualpipe_v", "recompute_stage"});
  return kWords;
}

}  // namespace lockstep::spec
