// The first message of every call: what the sender calls, and its data if that is small.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/mpi/board.h"

namespace lockstep::comm::mpi {

// Up to so much data travels in an announcement, which stays below what MPI sends without asking the receiver first.
inline constexpr int64_t kInlineBytes = 3072;

// As it travels; counts of uneven calls follow it, then the data.
struct Announcement {
  uint64_t group = 0, number = 0;
  Operation operation = Operation::barrier;
  DataType type = DataType::u8;
  Reduction reduction = Reduction::sum;
  bool uneven = false;
  uint8_t algorithm = 0;
  int32_t peer = -1;
  int64_t count = 0;
  uint64_t detail_hash = 0;
  int64_t given_bytes = 0;  // to the receiver of this announcement
  int32_t num_counts = 0;
  char tag[36] = {};  // cut to what fits
};

// Room for an announcement of a group of `size`.
int64_t announcement_bytes(int size);

// Writes the announcement with its counts; the data is the caller's to add, at data_of(at).
void write_announcement(char* at, const Place& place, const GroupIdentity& group, int64_t given_bytes);
const Announcement& header_of(const char* at);
char* data_of(char* at);
// To be sent: up to the end of the data if that is inline.
int64_t length_of(const char* at);
CallInfo call_of(const char* at);

// What a mismatch says: "rank 1 made barrier; rank 2 made ...", one clause for each different call.
struct NamedCall {
  int world_rank = 0;
  std::string call;
};
std::string who_made_what(const std::vector<NamedCall>& calls);

}  // namespace lockstep::comm::mpi
