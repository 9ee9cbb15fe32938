// A text that one rank has, on every rank.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Root's text; the others' are not looked at. All ranks of the group call it alike.
std::string shared_text(ProcessGroup& group, std::string text, int root = 0, std::string_view tag = {});

}  // namespace lockstep::comm
