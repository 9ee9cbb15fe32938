#include "lockstep/launch/mpirun.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/launch/children.h"

extern char** environ;

namespace lockstep::launch {

int mpirun(const MpirunOptions& options) {
  ChildOptions child_options{.command = {"mpirun", "--oversubscribe", "--bind-to", "none"}};
  if (geteuid() == 0) child_options.command.push_back("--allow-run-as-root");
  child_options.command.insert(child_options.command.end(), {"-n", std::to_string(options.ranks)});
  child_options.command.insert(child_options.command.end(), options.command.begin(), options.command.end());
  for (char** entry = environ; *entry != nullptr; ++entry) child_options.environment.emplace_back(*entry);
  sigprocmask(SIG_SETMASK, nullptr, &child_options.signal_mask);
  Child child = start_child(child_options);
  while (!child.ended) {
    pollfd watched{child.descriptor, POLLIN, 0};
    poll(&watched, 1, -1);
    reap_child(child);
  }
  return WIFSIGNALED(child.status) ? 128 + WTERMSIG(child.status) : WEXITSTATUS(child.status);
}

}  // namespace lockstep::launch
