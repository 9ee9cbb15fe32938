// Pictures of programs as text: which pieces go where in which round, and what everyone has afterwards.
#pragma once

#include <string>

#include "lockstep/collective/program.h"

namespace lockstep::collective {

// One paragraph per round: the messages ("0 --2--> 1": rank 0 sends piece 2 to rank 1; "==>": which adds it), then for
// each rank what it has of every piece: the letters of the ranks whose values are in it (a is rank 0), "." nothing. Of
// all_to_all, whose pieces are pairs, only the messages ("0>2": what rank 0 has for rank 2).
std::string draw(const Program& program);

}  // namespace lockstep::collective
