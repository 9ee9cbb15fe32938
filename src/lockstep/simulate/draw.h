// Pictures of a simulation: as text, one character cell per unit of time, and as SVG.
//
//   rank 0 |F0F1F2F3············B0B0F4B1B1F5B2B2F6B3B3F7B4B4··B5B5··B6B6··B7B7|
#pragma once

#include <string>
#include <vector>

#include "lockstep/simulate/simulate.h"

namespace lockstep::simulate {

struct DrawOptions {
  double cell = 0;              // time of one cell; 0: natural_cell
  std::string label = "rank ";  // before the rank's number
  int columns = 0;              // a line may be so many characters wide, longer ones go on below; 0: any number
};

// One line per rank. Each cell shows what the rank computes in its middle, the letter and the micro-batch (and before
// them the stage, where ranks have several): "F0", "5B12"; "·" when it computes nothing. All cells are as wide as the
// widest text.
//   throws InvalidArgument for a cell that is not a positive time, or so small that there are more than 100,000
std::string draw(const Simulation& simulation, const DrawOptions& options = {});

// The shortest time that any computing takes.
double natural_cell(const Simulation& simulation);

// A drawing of the same for browsers, each box with its action and times as tooltip, messages as thin lines.
std::string draw_svg(const Simulation& simulation);

}  // namespace lockstep::simulate
