// Messages and bytes of a program: what an execution must have sent, exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/collective/program.h"

namespace lockstep::collective {

struct Traffic {
  int64_t messages_sent = 0, bytes_sent = 0;
  int64_t messages_received = 0, bytes_received = 0;
  Traffic& operator+=(const Traffic& other);
  bool operator==(const Traffic&) const = default;
};

// By rank. `sizes` are elements of each piece, of element_bytes bytes. Empty messages are not sent and do not count.
//   throws   InvalidArgument unless there is one size for each piece
std::vector<Traffic> count(const Program& program, std::span<const int64_t> sizes, int64_t element_bytes);

// Bytes that leave `host` for others: what its network interface sends.
//   host_of_rank   one for each rank
int64_t bytes_leaving_host(const Program& program, std::span<const int64_t> sizes, int64_t element_bytes,
                           std::span<const int> host_of_rank, int host);

}  // namespace lockstep::collective
