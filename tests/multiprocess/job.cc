#include "job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/world.h"

namespace lockstep::multiprocess {
namespace {

constexpr char kAsLauncher[] = "--as-launcher";
constexpr char kAsRank[] = "--as-rank";

std::map<std::string, RankProgram>& programs() {
  static std::map<std::string, RankProgram> all;
  return all;
}

int run_as_rank(const std::string& program, std::span<const std::string> arguments) {
  try {
    if (program == "no_world") return std::stoi(arguments[0]);
    const auto world = launch::world_from_environment();
    log::configure({.rank = world->rank(), .world_size = world->size()});
    try {
      programs().at(program)(*world, arguments);
    } catch (const Error& error) {
      std::cerr << text(error.type_name(), ": ", error.what(), "\n");
      std::_Exit(error.exit_code());
    }
  } catch (const Error& error) {
    std::cerr << text(error.type_name(), ": ", error.what(), "\n");
    return error.exit_code();
  }
  return 0;
}

// --as-launcher RANKS DEADLINE_MS COMMAND PROGRAM ARGUMENTS...
int run_as_launcher(std::span<const std::string> arguments) {
  launch::Options options{.ranks = std::stoi(arguments[0]),
                          .deadline = std::chrono::milliseconds(std::stoll(arguments[1]))};
  std::istringstream words(arguments[2].empty() ? text("/proc/self/exe ", kAsRank) : arguments[2]);
  for (std::string word; words >> word;) options.command.push_back(word);
  options.command.insert(options.command.end(), arguments.begin() + 3, arguments.end());
  return launch::launch(options);
}

}  // namespace

RankProgramEntry::RankProgramEntry(const char* name, RankProgram program) {
  programs()[name] = std::move(program);
}

Job::Job(const JobOptions& options) : start_s_(now_s()) {
  const std::string own_path = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> arguments = options.launcher;
  if (arguments.empty()) {
    arguments = {own_path, kAsLauncher, std::to_string(options.ranks),
                 std::to_string(static_cast<int64_t>(options.deadline_s * 1000)), options.command};
  } else {
    arguments.insert(arguments.end(), {own_path, kAsRank});
  }
  arguments.push_back(options.program);
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Unsupported("no pipe");
  launcher_ = fork();
  if (launcher_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execvp(pointers.front(), pointers.data());
    _exit(126);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

Job::~Job() {
  if (!finished_) {
    kill(launcher_, SIGKILL);
    waitpid(launcher_, nullptr, 0);
  }
  close(pipe_);
}

bool Job::read_more(double longest_s) {
  pollfd watched{pipe_, POLLIN, 0};
  if (poll(&watched, 1, static_cast<int>(longest_s * 1000)) <= 0) return false;
  char buffer[4096];
  const ssize_t count = read(pipe_, buffer, sizeof buffer);
  if (count <= 0) return false;
  output_.append(buffer, static_cast<size_t>(count));
  return true;
}

bool Job::wait_for_output(const std::string& text) {
  const double until_s = now_s() + 20;
  while (output_.find(text) == std::string::npos) {
    if (now_s() > until_s || !read_more(until_s - now_s())) return false;
  }
  return true;
}

pid_t Job::process_of_rank(int rank) {
  const std::string line = text("process of rank ", rank, " is ");
  if (!wait_for_output(line)) return -1;
  const size_t at = output_.find(line) + line.size();
  while (output_.find('\n', at) == std::string::npos && read_more(20)) {
  }
  return std::stoi(output_.substr(at));
}

JobResult Job::finish() {
  while (read_more(60)) {
  }
  int status = 0;
  waitpid(launcher_, &status, 0);
  finished_ = true;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), output_, now_s() - start_s_};
}

JobResult run_job(const JobOptions& options) {
  return Job(options).finish();
}

void announce_process(int rank) {
  std::cout << "process of rank " << rank << " is " << getpid() << std::endl;
}

bool process_runs(pid_t process) {
  std::ifstream stat(text("/proc/", process, "/stat"));
  std::string line;
  if (!std::getline(stat, line)) return false;
  const char state = line[line.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

}  // namespace lockstep::multiprocess

int main(int argc, char** argv) {
  namespace multiprocess = lockstep::multiprocess;
  const std::vector<std::string> arguments(argv, argv + argc);
  if (argc > 1 && arguments[1] == multiprocess::kAsLauncher) {
    return multiprocess::run_as_launcher(std::span(arguments).subspan(2));
  }
  if (argc > 2 && arguments[1] == multiprocess::kAsRank) {
    return multiprocess::run_as_rank(arguments[2], std::span(arguments).subspan(3));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
