// How actions are written, for table.cc and parse_table.cc.
#pragma once

#include <string_view>

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

struct Spelling {
  std::string_view name;
  std::string_view letters;  // between stage and micro-batch
};
const Spelling& spelling(Action::Kind kind);

inline constexpr std::string_view kOverlap = "OVERLAP_F_B";

}  // namespace lockstep::schedule
