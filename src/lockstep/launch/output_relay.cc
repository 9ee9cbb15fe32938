#include "lockstep/launch/output_relay.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace lockstep::launch {
namespace {

void write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // nobody reads any more; the ranks go on
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void OutputRelay::start(std::vector<Stream> streams) {
  streams_ = std::move(streams);
  if (!streams_.empty()) thread_ = std::thread([this] { run(); });
}

void OutputRelay::finish() {
  if (thread_.joinable()) thread_.join();
}

void OutputRelay::run() {
  while (!streams_.empty()) {
    std::vector<pollfd> watched;
    for (const Stream& stream : streams_) watched.push_back({stream.pipe, POLLIN, 0});
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    std::vector<Stream> open;
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (watched[i].revents == 0 || pass_on(streams_[i])) {
        open.push_back(std::move(streams_[i]));
      } else {
        close(streams_[i].pipe);
      }
    }
    streams_ = std::move(open);
  }
}

// Returns whether there may be more.
bool OutputRelay::pass_on(Stream& stream) {
  char buffer[1 << 16];
  const ssize_t count = read(stream.pipe, buffer, sizeof buffer);
  if (count < 0) return errno == EINTR;
  stream.partial_line.append(buffer, static_cast<size_t>(count));
  if (count == 0 && !stream.partial_line.empty()) stream.partial_line += '\n';
  std::string lines;
  size_t begin = 0;
  for (size_t end; (end = stream.partial_line.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.append(stream.prefix).append(stream.partial_line, begin, end + 1 - begin);
  }
  stream.partial_line.erase(0, begin);
  write_all(stream.to, lines);
  return count > 0;
}

}  // namespace lockstep::launch
