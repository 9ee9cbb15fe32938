// run_ranks N PROGRAM ARGS...: the launcher alone, for builds without the command line.
#include <cstdlib>

#include "lockstep/launch/launch.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return lockstep::launch::launch(
      {.ranks = std::atoi(argv[1]), .command = {argv + 2, argv + argc}, .prefix_output = false});
}
