#include "lockstep/collective/count.h"

namespace lockstep::collective {
namespace {

// Calls visit(rank, step, bytes) for every message that is sent and for every one that is received.
template <typename Visit>
void for_each_message(const Program& program, std::span<const int64_t> sizes, int64_t element_bytes, Visit visit) {
  for (int rank = 0; rank < program.ranks; ++rank) {
    const Layout layout(program, sizes, rank);
    for (const Step& step : program.steps_by_rank[static_cast<size_t>(rank)]) {
      if (step.kind == Step::Kind::copy) continue;
      const int64_t elements = layout.range(step.kind == Step::Kind::send ? step.source : step.target).size;
      if (elements > 0) visit(rank, step, elements * element_bytes);
    }
  }
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  messages_sent += other.messages_sent;
  bytes_sent += other.bytes_sent;
  messages_received += other.messages_received;
  bytes_received += other.bytes_received;
  return *this;
}

std::vector<Traffic> count(const Program& program, std::span<const int64_t> sizes, int64_t element_bytes) {
  std::vector<Traffic> traffic(static_cast<size_t>(program.ranks));
  for_each_message(program, sizes, element_bytes, [&](int rank, const Step& step, int64_t bytes) {
    traffic[static_cast<size_t>(rank)] += step.kind == Step::Kind::send
                                              ? Traffic{.messages_sent = 1, .bytes_sent = bytes}
                                              : Traffic{.messages_received = 1, .bytes_received = bytes};
  });
  return traffic;
}

int64_t bytes_leaving_host(const Program& program, std::span<const int64_t> sizes, int64_t element_bytes,
                           std::span<const int> host_of_rank, int host) {
  int64_t total = 0;
  for_each_message(program, sizes, element_bytes, [&](int rank, const Step& step, int64_t bytes) {
    const bool leaves =
        host_of_rank[static_cast<size_t>(rank)] == host && host_of_rank[static_cast<size_t>(step.peer)] != host;
    if (leaves && step.kind == Step::Kind::send) total += bytes;
  });
  return total;
}

}  // namespace lockstep::collective
