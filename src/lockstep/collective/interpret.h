// Runs a program on simulated ranks, over numbers: the reference that proves programs and that executors are compared
// with. Ranks run independently of one another; messages wait in channels, in order, and a rank leaves a round only
// when all it sent was taken, as with messages too large for any buffer.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/collective/program.h"

namespace lockstep::collective {

struct Interpretation {
  std::function<double(double, double)> combine = [](double left, double right) { return left + right; };
  // To the precision of the type that is simulated, applied where program.rounding says; by default double itself.
  std::function<double(double)> round = [](double value) { return value; };
  bool in_place = false;  // a piece that a rank has in input and in output is one memory
};

// Every rank's output.
//   sizes    elements of each piece
//   inputs   by rank: what its input holds
//   throws   InternalError: ranks that wait for one another, messages left over or of unequal length, reading what was
//            not written, output left unwritten; each names the rank and the step
std::vector<std::vector<double>> interpret(const Program& program, std::span<const int64_t> sizes,
                                           const std::vector<std::vector<double>>& inputs,
                                           const Interpretation& how = {});

}  // namespace lockstep::collective
