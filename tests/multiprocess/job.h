// Real processes for tests: this binary starts itself again as a launcher, which starts it again as every rank.
//
//   RANK_PROGRAM(greets) { ... }          // what a rank does; a throw becomes the exit code of its type
//   const JobResult result = run_job({.program = "greets", .ranks = 3});
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::multiprocess {

using RankProgram = std::function<void(comm::ProcessGroup& world, std::span<const std::string> arguments)>;

// Registered by RANK_PROGRAM before main.
struct RankProgramEntry {
  RankProgramEntry(const char* name, RankProgram program);
};

#define RANK_PROGRAM(name)                                                                         \
  static void name(::lockstep::comm::ProcessGroup& world, std::span<const std::string> arguments); \
  static const ::lockstep::multiprocess::RankProgramEntry name##_entry{#name, name};               \
  static void name([[maybe_unused]] ::lockstep::comm::ProcessGroup& world,                         \
                   [[maybe_unused]] std::span<const std::string> arguments)

struct JobOptions {
  std::string program;  // a RANK_PROGRAM
  std::vector<std::string> arguments;
  int ranks = 2;
  double deadline_s = 60;
  std::string command;  // another program, with arguments before `program`; empty: this binary
  // Another launcher and its arguments, which starts this binary; `ranks`, `deadline_s` and `command` are not used.
  std::vector<std::string> launcher{};
};

struct JobResult {
  int exit_code = -1;  // of the launcher
  std::string output;  // what it and its ranks printed
  double seconds = 0;
};

// A job under way. Everything it printed so far can be waited for.
class Job {
 public:
  // A launcher that cannot be started ends with exit code 126.
  explicit Job(const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t launcher() const { return launcher_; }
  // Of rank programs that call announce_process().
  pid_t process_of_rank(int rank);
  // Reads on until the output contains `text`; gives up after 20 s.
  bool wait_for_output(const std::string& text);
  // Reads to the end of the output and reaps the launcher.
  JobResult finish();
  const std::string& output() const { return output_; }

 private:
  bool read_more(double longest_s);
  pid_t launcher_ = -1;
  int pipe_ = -1;
  std::string output_;
  double start_s_ = 0;
  bool finished_ = false;
};

JobResult run_job(const JobOptions& options);

// In a rank: prints the line that process_of_rank looks for.
void announce_process(int rank);

// Whether such a process exists, other than as a corpse.
bool process_runs(pid_t process);

}  // namespace lockstep::multiprocess
