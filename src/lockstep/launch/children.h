// The rank processes: starting, signalling, reaping.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep::launch {

// A process started with its own process group, output pipes if asked for, and the order to die with us.
struct Child {
  pid_t process = -1;
  int descriptor = -1;  // of the process: readable when it has ended
  int output = -1, error_output = -1;
  bool ended = false;
  int status = 0;  // of waitpid, once ended
};

struct ChildOptions {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value", all of it
  int inherited_descriptor = -1;
  bool pipe_output = false;
  bool read_input = false;
  sigset_t signal_mask;  // of the program
};

//   throws  Unsupported when the host gives no more processes or files
Child start_child(const ChildOptions& options);

// To the child and what it has started; also wakes it if it is stopped and must act on the signal.
void signal_child(const Child& child, int signal);

// By SIGSTOP or a terminal, and not going on since.
bool is_stopped(const Child& child);

// Takes notice if it has ended. Kills what it has left running.
void reap_child(Child& child);

}  // namespace lockstep::launch
