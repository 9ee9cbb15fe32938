// Whether a program keeps the rules of program.h, without running it.
#pragma once

#include <vector>

#include "lockstep/collective/program.h"

namespace lockstep::collective {

// Every rule that the program breaks; each problem's field is the rank, its value the step: chunks that a buffer does
// not hold, writes to input, peers and rounds out of order, sends without their receive, reading what was not written,
// conflicts inside a round, in place too, output left unwritten, reductions where nothing is reduced.
std::vector<Problem> validate(const Program& program);

// What the operation defines input or output to hold on `rank`: the table in program.h. Not for scratch.
Held defined(const Program& program, int rank, Buffer buffer);

// "reduce input 3 and what 1 sends into output 3", "send output 0..2 to 1"
std::string to_string(const Step& step);

}  // namespace lockstep::collective
