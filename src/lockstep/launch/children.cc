#include "lockstep/launch/children.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

constexpr int kCannotStart = 127;

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  int reading = -1, writing = -1;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Unsupported(text("cannot make a pipe for a rank's output: ", std::strerror(errno)));
  return {ends[0], ends[1]};
}

void say(const char* message) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message, std::strlen(message));
}

// Everything that is prepared before fork, because only simple system calls are safe between fork and exec.
struct Prepared {
  const char* program;
  char* const* arguments;
  char* const* environment;
  pid_t launcher;
  Pipe output, error_output;
};

[[noreturn]] void become_program(const Prepared& prepared, const ChildOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.launcher) _exit(kCannotStart);  // it died before the line above
  setpgid(0, 0);
  if (options.inherited_descriptor >= 0) fcntl(options.inherited_descriptor, F_SETFD, 0);
  if (!options.read_input) {
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  }
  if (options.pipe_output) {
    dup2(prepared.output.writing, STDOUT_FILENO);
    dup2(prepared.error_output.writing, STDERR_FILENO);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
  sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
  execvpe(prepared.program, prepared.arguments, prepared.environment);
  const char* const reason = std::strerror(errno);
  say("cannot start ");
  say(prepared.program);
  say(": ");
  say(reason);
  say("\n");
  _exit(kCannotStart);
}

}  // namespace

Child start_child(const ChildOptions& options) {
  const std::vector<char*> arguments = pointers_to(options.command);
  const std::vector<char*> environment = pointers_to(options.environment);
  Prepared prepared{arguments[0], arguments.data(), environment.data(), getpid(), {}, {}};
  if (options.pipe_output) {
    prepared.output = make_pipe();
    prepared.error_output = make_pipe();
  }
  Child child;
  child.process = fork();
  if (child.process == 0) become_program(prepared, options);
  const int error = errno;
  for (const int end : {prepared.output.writing, prepared.error_output.writing}) {
    if (end >= 0) close(end);
  }
  if (child.process < 0) throw Unsupported(text("cannot start a process: ", std::strerror(error)));
  setpgid(child.process, child.process);  // here too: whichever comes first
  child.output = prepared.output.reading;
  child.error_output = prepared.error_output.reading;
  child.descriptor = static_cast<int>(syscall(SYS_pidfd_open, child.process, 0));
  if (child.descriptor < 0) {
    const int reason = errno;
    kill(child.process, SIGKILL);
    waitpid(child.process, nullptr, 0);
    throw Unsupported(text("cannot watch a process (pidfd_open: ", std::strerror(reason), "): this needs Linux 5.3"));
  }
  return child;
}

void signal_child(const Child& child, int signal) {
  if (!child.ended) kill(-child.process, signal);
}

bool is_stopped(const Child& child) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(child.process), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child.process;
}

void reap_child(Child& child) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(child.process);
  if (child.ended || waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
  kill(-child.process, SIGKILL);  // before its number can be given to others
  waitpid(child.process, &child.status, 0);
  child.ended = true;
  close(child.descriptor);
}

}  // namespace lockstep::launch
