#include "lockstep/launch/launch.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/shared_memory/shared_memory.h"
#include "lockstep/launch/children.h"
#include "lockstep/launch/output_relay.h"
#include "lockstep/launch/variables.h"

extern char** environ;

namespace lockstep::launch {
namespace {

constexpr int kRankLost = 3;
constexpr double kBetweenTermAndKill_s = 0.25;
constexpr double kGraceAfterSignal_s = 10;  // ranks told to end may be writing a checkpoint

// Takes the signals that end programs as something to read, for as long as it lives.
class Signals {
 public:
  Signals() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&taken, signal);
    pthread_sigmask(SIG_BLOCK, &taken, &before_);
    descriptor_ = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (descriptor_ < 0) throw Unsupported(text("cannot watch signals: ", std::strerror(errno)));
  }
  ~Signals() {
    close(descriptor_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_; }
  const sigset_t& mask_before() const { return before_; }
  std::optional<int> next() const {
    signalfd_siginfo info{};
    if (read(descriptor_, &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_;
  int descriptor_;
};

std::vector<std::string> environment_of_rank(const Options& options, int rank, int descriptor) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text_of_entry(*entry);
    const size_t equals = text_of_entry.find('=');
    if (equals == std::string_view::npos) continue;
    variables[std::string(text_of_entry.substr(0, equals))] = text_of_entry.substr(equals + 1);
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  const std::string own = std::to_string(rank);
  const std::string all = std::to_string(options.ranks);
  for (const char* const name : {kRankVariable, "RANK", "LOCAL_RANK"}) variables[name] = own;
  for (const char* const name : {kWorldSizeVariable, "WORLD_SIZE", "LOCAL_WORLD_SIZE"}) variables[name] = all;
  variables[kDescriptorVariable] = std::to_string(descriptor);
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(text(name, "=", value));
  return entries;
}

class Job {
 public:
  explicit Job(const Options& options)
      : options_(options), world_({.ranks = options.ranks, .deadline = options.deadline}) {}
  ~Job();

  int run();

 private:
  void start();
  void start_output();
  void wait_for_something();
  void pass_signals_on();
  void look_at_children();
  void note_end(int rank);
  void note_failure(int exit_code);
  void end_survivors();
  bool only_stopped_ones_left() const;
  bool all_ended() const;

  const Options& options_;
  comm::SharedMemoryWorld world_;
  Signals signals_;
  std::vector<Child> children_;
  OutputRelay output_;
  int signal_passed_on_ = 0;
  std::optional<int> exit_code_;  // of the first failure
  double end_survivors_at_s_ = INFINITY;
  int next_signal_ = SIGTERM;
};

int Job::run() {
  start();
  while (!all_ended()) {
    wait_for_something();
    pass_signals_on();
    look_at_children();
    end_survivors();
  }
  output_.finish();
  return exit_code_.value_or(0);
}

// Only if something above threw: nothing is left running.
Job::~Job() {
  for (Child& child : children_) signal_child(child, SIGKILL);
  for (Child& child : children_) {
    if (child.ended) continue;
    pollfd watched{child.descriptor, POLLIN, 0};
    poll(&watched, 1, -1);
    reap_child(child);
  }
}

void Job::start() {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    children_.push_back(start_child({.command = options_.command,
                                     .environment = environment_of_rank(options_, rank, world_.descriptor()),
                                     .inherited_descriptor = world_.descriptor(),
                                     .pipe_output = options_.prefix_output,
                                     .read_input = rank == 0 && isatty(STDIN_FILENO) == 0,
                                     .signal_mask = signals_.mask_before()}));
  }
  if (options_.prefix_output) start_output();
}

void Job::start_output() {
  std::vector<OutputRelay::Stream> streams;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const Child& child = children_[static_cast<size_t>(rank)];
    const std::string prefix = text("[", rank, "] ");
    streams.push_back({child.output, STDOUT_FILENO, prefix, ""});
    streams.push_back({child.error_output, STDERR_FILENO, prefix, ""});
  }
  output_.start(std::move(streams));
}

void Job::wait_for_something() {
  std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
  for (const Child& child : children_) {
    if (!child.ended) watched.push_back({child.descriptor, POLLIN, 0});
  }
  const double wait_s = end_survivors_at_s_ - now_s();
  const int wait_ms = std::isinf(wait_s) ? -1 : static_cast<int>(std::ceil(std::max(wait_s, 0.0) * 1000));
  poll(watched.data(), watched.size(), wait_ms);
}

void Job::pass_signals_on() {
  while (const std::optional<int> signal = signals_.next()) {
    const bool again = signal_passed_on_ != 0;
    signal_passed_on_ = *signal;
    for (const Child& child : children_) signal_child(child, *signal);
    if (!again) continue;
    next_signal_ = SIGKILL;  // they were told before: whoever asks twice means it
    end_survivors_at_s_ = now_s();
  }
}

// Those killed by a signal first: others may have ended because of them.
void Job::look_at_children() {
  std::vector<int> ended;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    Child& child = children_[static_cast<size_t>(rank)];
    if (child.ended) continue;
    reap_child(child);
    if (child.ended) ended.push_back(rank);
  }
  std::ranges::sort(ended, {}, [this](int rank) {
    return std::pair(!WIFSIGNALED(children_[static_cast<size_t>(rank)].status), rank);
  });
  for (const int rank : ended) note_end(rank);
}

void Job::note_end(int rank) {
  const int status = children_[static_cast<size_t>(rank)].status;
  const bool first = !exit_code_;
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const std::string reason = text("killed by signal ", signal, ", ", strsignal(signal));
    world_.mark_lost(rank, reason);
    const bool asked_for = signal == signal_passed_on_;
    if (first && !asked_for) log::error("rank ", rank, " was lost (", reason, "); ending the others");
    note_failure(asked_for ? 128 + signal : kRankLost);
  } else if (WEXITSTATUS(status) != 0) {
    world_.mark_lost(rank, text("it ended with exit code ", WEXITSTATUS(status)));
    if (first && options_.ranks > 1) {
      log::error("rank ", rank, " ended with exit code ", WEXITSTATUS(status), "; ending the others");
    }
    note_failure(WEXITSTATUS(status));
  } else {
    world_.mark_left(rank);
  }
}

void Job::note_failure(int exit_code) {
  if (exit_code_) return;
  exit_code_ = exit_code;
  const double grace_s =
      signal_passed_on_ != 0 ? kGraceAfterSignal_s : std::chrono::duration<double>(options_.grace).count();
  end_survivors_at_s_ = std::min(end_survivors_at_s_, now_s() + grace_s);
}

void Job::end_survivors() {
  if (exit_code_ && only_stopped_ones_left()) {  // these will not end by themselves, whatever they are given
    for (const Child& child : children_) signal_child(child, SIGKILL);
  }
  if (now_s() < end_survivors_at_s_) return;
  for (const Child& child : children_) signal_child(child, next_signal_);
  end_survivors_at_s_ = next_signal_ == SIGTERM ? now_s() + kBetweenTermAndKill_s : INFINITY;
  next_signal_ = SIGKILL;
}

bool Job::only_stopped_ones_left() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.ended || is_stopped(child); });
}

bool Job::all_ended() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.ended; });
}

}  // namespace

int launch(const Options& options) {
  if (options.command.empty()) throw InvalidArgument("launch: no program to start; name it after --");
  return Job(options).run();
}

}  // namespace lockstep::launch
