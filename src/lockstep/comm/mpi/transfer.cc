#include "lockstep/comm/mpi/transfer.h"

#include <algorithm>

namespace lockstep::comm::mpi {
namespace {

constexpr int64_t kLongestMessageBytes = int64_t{1} << 30;  // MPI counts in 31 bits
// OpenMPI sends up to 64 KiB over TCP without asking, its own header included. Where an MPI asks earlier it does so for
// several segments at once.
constexpr int64_t kUnaskedBytes = 60 << 10;
constexpr size_t kSegmentsUnderWay = 32;

}  // namespace

Transfer::Transfer(const GroupView& group, Stream stream) : group_(group), stream_(stream) {
  lanes_.reserve(2 * static_cast<size_t>(group.identity.size()));
}

Transfer::~Transfer() {
  for (Lane& lane : lanes_) {
    for (size_t i = lane.through; lane.receives && i < lane.started; ++i)
      group_.session.give_up(lane.segments[i].pending);
  }
}

int64_t Transfer::longest_segment(int member) const {
  return stream_ == Stream::data && !group_.on_this_host(member) ? kUnaskedBytes : kLongestMessageBytes;
}

void Transfer::add(int member, bool receives, void* data, int64_t bytes) {
  auto lane = std::ranges::find_if(
      lanes_, [&](const Lane& each) { return each.member == member && each.receives == receives; });
  if (lane == lanes_.end()) lane = lanes_.insert(lane, {.member = member, .receives = receives, .segments = {}});
  const int64_t longest = longest_segment(member);
  lane->segments.reserve(lane->segments.size() + static_cast<size_t>((bytes + longest - 1) / longest));
  for (int64_t at = 0; at < bytes; at += longest) {
    const int64_t n = std::min(longest, bytes - at);
    lane->segments.push_back({.data = static_cast<char*>(data) + at, .bytes = n, .is_last = at + n == bytes});
  }
  start_segments(*lane);
}

void Transfer::start_segments(Lane& lane) {
  const int tag = group_.tag + static_cast<int>(stream_);
  const int world_rank = group_.identity.world_rank_of(lane.member);
  const Session& session = group_.session;
  for (; lane.started < std::min(lane.segments.size(), lane.through + kSegmentsUnderWay); ++lane.started) {
    Lane::Segment& next = lane.segments[lane.started];
    next.pending = lane.receives ? session.receive(Channel::calls, world_rank, tag, next.data, next.bytes)
                                 : session.send(Channel::calls, world_rank, tag, next.data, next.bytes);
  }
}

std::vector<int> Transfer::awaited() const {
  std::vector<int> members;
  for (const Lane& lane : lanes_) {
    if (!lane.is_through() && std::ranges::find(members, lane.member) == members.end()) {
      members.push_back(lane.member);
    }
  }
  std::ranges::sort(members);
  return members;
}

}  // namespace lockstep::comm::mpi
