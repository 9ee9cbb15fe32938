#include "lockstep/comm/mpi/transfer.h"

#include <algorithm>

namespace lockstep::comm::mpi {
namespace {

constexpr int64_t kLongestMessageBytes = int64_t{1} << 30;  // MPI counts in 31 bits

}  // namespace

Transfer::~Transfer() {
  for (Part& part : parts_) {
    if (part.receives) group_.session.give_up(part.pending);
  }
}

void Transfer::send(int member, const void* data, int64_t bytes) {
  const int tag = group_.tag + static_cast<int>(stream_);
  for (int64_t at = 0; at < bytes; at += kLongestMessageBytes) {
    const int64_t n = std::min(kLongestMessageBytes, bytes - at);
    const char* const from = static_cast<const char*>(data) + at;
    parts_.push_back(
        {group_.session.send(Channel::calls, group_.identity.world_rank_of(member), tag, from, n), member});
  }
}

void Transfer::receive(int member, void* data, int64_t bytes) {
  const int tag = group_.tag + static_cast<int>(stream_);
  for (int64_t at = 0; at < bytes; at += kLongestMessageBytes) {
    const int64_t n = std::min(kLongestMessageBytes, bytes - at);
    char* const to = static_cast<char*>(data) + at;
    parts_.push_back(
        {group_.session.receive(Channel::calls, group_.identity.world_rank_of(member), tag, to, n), member, true});
  }
}

std::vector<int> Transfer::awaited() const {
  std::vector<int> members;
  for (const Part& part : parts_) {
    if (std::ranges::find(members, part.member) == members.end()) members.push_back(part.member);
  }
  std::ranges::sort(members);
  return members;
}

}  // namespace lockstep::comm::mpi
