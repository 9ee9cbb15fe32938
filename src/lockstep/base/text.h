// Joins values into a string, for messages: text("rank ", 3, " waited ", 2.5, " s"). Formatting libraries stay out of
// headers because the torch wheel ships an fmt of its own.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace lockstep {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));
  return out.str();
}

// "a, b, c": each element streamed, `separator` between.
template <class Range>
std::string join(const Range& range, std::string_view separator = ", ") {
  std::ostringstream out;
  bool first = true;
  for (const auto& element : range) {
    if (!first) out << separator;
    out << element;
    first = false;
  }
  return out.str();
}

// The candidate closest to `name` by edit distance; empty when nothing is near (more than half of the letters differ).
template <class Range>
std::string nearest_name(std::string_view name, const Range& candidates);

size_t edit_distance(std::string_view a, std::string_view b);

template <class Range>
std::string nearest_name(std::string_view name, const Range& candidates) {
  std::string best;
  size_t best_distance = name.size() / 2 + 2;
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace lockstep
