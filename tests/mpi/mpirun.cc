#include "mpirun.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace lockstep::multiprocess {

bool has_mpirun() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/mpirun").c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& options) {
  std::vector<std::string> command{"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"-n", std::to_string(ranks)});
  return command;
}

}  // namespace lockstep::multiprocess
