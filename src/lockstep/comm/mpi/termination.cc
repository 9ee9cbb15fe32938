#include "lockstep/comm/mpi/termination.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::comm::mpi {
namespace {

// Static, because that is all a signal handler can see. Written before it is installed.
struct Seen {
  const Peers* peers = nullptr;
  std::string line;                // without its end
  std::vector<std::string> names;  // " rank 3", by rank
  std::atomic<int> calls{0};
  std::atomic<bool> asked_for{false};
};
Seen seen;

// Calls only what a signal handler may.
void end_or_tell(int signal_number) {
  seen.asked_for.store(true);
  if (seen.calls.load() > 0) return;
  char line[1024];
  size_t length = 0;
  const auto add = [&](std::string_view words) {
    if (length + words.size() >= sizeof line) return;
    std::memcpy(line + length, words.data(), words.size());
    length += words.size();
  };
  add(seen.line);
  bool any = false;
  for (size_t rank = 0; rank < seen.names.size(); ++rank) {
    if (!seen.peers->ended(static_cast<int>(rank))) continue;
    add(any ? "," : "; processes that have ended:");
    add(seen.names[rank]);
    any = true;
  }
  line[length] = '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, length + 1);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

Termination::Termination(const Peers& peers, int rank, int world_size) {
  struct sigaction before{};
  sigaction(SIGTERM, nullptr, &before);
  if (before.sa_handler != SIG_DFL) return;
  seen.peers = &peers;
  seen.line = text("rank ", rank, ": error: told to end by SIGTERM");
  seen.names.clear();
  for (int other = 0; other < world_size; ++other) seen.names.push_back(text(" rank ", other));
  struct sigaction own{};
  own.sa_handler = end_or_tell;
  sigaction(SIGTERM, &own, nullptr);
  taken_ = true;
}

Termination::~Termination() {
  if (taken_) signal(SIGTERM, SIG_DFL);
}

bool Termination::asked_for() {
  return seen.asked_for.load();
}

Termination::DuringCall::DuringCall() {
  seen.calls.fetch_add(1);
}

Termination::DuringCall::~DuringCall() {
  seen.calls.fetch_sub(1);
}

}  // namespace lockstep::comm::mpi
