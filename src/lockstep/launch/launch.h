// Starts a program as N ranks on this host and watches over them.
//
// The ranks are children of this process, which is no rank itself. It marks a death in the memory that they share, so
// that the others fail at once with an error that names the dead rank; then it ends those that do not end by
// themselves, stopped ones too. When this process dies, however it dies, its ranks die with it.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

struct Options {
  int ranks = 1;
  std::vector<std::string> command;                // the program, found in PATH, and its arguments
  std::map<std::string, std::string> environment;  // added to this process's own
  // Every line of a rank's output begins with "[rank] ". Otherwise ranks write where this process does.
  bool prefix_output = true;
  std::chrono::milliseconds deadline{600'000};  // of the ranks' collectives, unless they say otherwise
  std::chrono::milliseconds grace{500};         // after a rank has failed: for the others to end with their own errors
};

// Returns when all ranks have ended and nothing of them is left. SIGINT, SIGTERM and SIGHUP are passed on to the ranks.
// Only rank 0 reads standard input, and only when that is no terminal: ranks are process groups of their own.
//   returns  0 when every rank returned 0; else the exit code of the rank that failed first, or 3 if it was killed by a
//            signal; 128 + the signal when that was one passed on; 127 if the program cannot be started
//   throws   InvalidArgument for an impossible number of ranks or an empty command, Unsupported when the host cannot
int launch(const Options& options);

}  // namespace lockstep::launch
