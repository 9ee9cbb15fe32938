#include "lockstep/comm/mpi/announcement.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm::mpi {
namespace {

int64_t data_offset(int64_t num_counts) {
  constexpr int64_t kAlignment = 64;
  return round_up(static_cast<int64_t>(sizeof(Announcement)) + num_counts * static_cast<int64_t>(sizeof(int64_t)),
                  kAlignment);
}

}  // namespace

int64_t announcement_bytes(int size) {
  return data_offset(2 * size) + kInlineBytes;
}

void write_announcement(char* at, const Place& place, const GroupIdentity& group, int64_t given_bytes) {
  const CallInfo& call = place.call;
  auto& header = *new (at) Announcement{.group = group.key,
                                        .number = place.number,
                                        .operation = call.operation,
                                        .type = call.type,
                                        .reduction = call.reduction,
                                        .uneven = call.uneven,
                                        .algorithm = call.algorithm,
                                        .peer = call.peer,
                                        .count = call.count,
                                        .detail_hash = call.detail_hash,
                                        .given_bytes = given_bytes,
                                        .num_counts = static_cast<int32_t>(call.counts.size())};
  std::memcpy(header.tag, call.tag.data(), std::min(call.tag.size(), sizeof header.tag - 1));
  std::memcpy(at + sizeof header, call.counts.data(), call.counts.size() * sizeof(int64_t));
}

const Announcement& header_of(const char* at) {
  return *reinterpret_cast<const Announcement*>(at);
}

char* data_of(char* at) {
  return at + data_offset(header_of(at).num_counts);
}

int64_t length_of(const char* at) {
  const Announcement& header = header_of(at);
  return data_offset(header.num_counts) + (header.given_bytes <= kInlineBytes ? header.given_bytes : 0);
}

CallInfo call_of(const char* at) {
  const Announcement& header = header_of(at);
  CallInfo call{.operation = header.operation,
                .type = header.type,
                .reduction = header.reduction,
                .uneven = header.uneven,
                .algorithm = header.algorithm,
                .peer = header.peer,
                .count = header.count,
                .detail_hash = header.detail_hash,
                .tag = header.tag};
  call.counts.resize(static_cast<size_t>(header.num_counts));
  std::memcpy(call.counts.data(), at + sizeof header, call.counts.size() * sizeof(int64_t));
  return call;
}

std::string who_made_what(const std::vector<NamedCall>& calls) {
  std::vector<std::string> clauses;
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto same = [&](const NamedCall& other) { return other.call == calls[i].call; };
    if (std::find_if(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(i), same) !=
        calls.begin() + static_cast<std::ptrdiff_t>(i)) {
      continue;
    }
    std::vector<int> ranks;
    for (const NamedCall& call : calls) {
      if (same(call)) ranks.push_back(call.world_rank);
    }
    clauses.push_back(text(ranks.size() > 1 ? "ranks " : "rank ", join(ranks), " made ", calls[i].call));
  }
  return join(clauses, "; ");
}

}  // namespace lockstep::comm::mpi
