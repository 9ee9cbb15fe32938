// What a rank's call looks like to other ranks: the fingerprint that is compared before data moves, and the words that
// errors print.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// A rank's view of a call, its own or another's.
struct CallInfo {
  Operation operation = Operation::barrier;
  DataType type = DataType::u8;
  Reduction reduction = Reduction::sum;
  bool reachable = true;  // the caller's memory can be read and written by the other ranks; not part of the fingerprint
  bool uneven = false;
  uint8_t algorithm = 0;  // see programs.h
  int32_t peer = -1;
  int64_t count = 0;
  uint64_t detail_hash = 0;  // of the tag and of counts that all ranks must agree on; 0: neither
  std::string tag;
  // Of uneven calls: the elements of each rank's part. all_to_all: those sent to each rank, then those received.
  std::vector<int64_t> counts;

  // What all ranks must agree on. `peer` of a send or receive differs by nature and is implied by the channel; so do
  // the counts of an uneven all_to_all, which fit when each pair of ranks agrees.
  bool same_call(const CallInfo& other) const;
  bool counts_differ_by_rank() const { return uneven && operation == Operation::all_to_all; }
  int64_t bytes() const { return count * element_size(type); }
};

// `count` is that of one rank's slice in reduce_scatter, all_gather, scatter, gather and all_to_all, and the sum of the
// counts (those sent) of an uneven call.
CallInfo info_of(const Call& call, bool reachable = true);

// "all_reduce(sum) of 1024 f32 [bucket 3]"; peers are printed as world ranks when the group's are given.
std::string describe(const CallInfo& call, std::span<const int32_t> world_ranks = {});

// "rank 1 made barrier; ranks 0, 2 made ...": one clause for each different call, in the order of their texts.
using RanksByCall = std::map<std::string, std::vector<int32_t>>;
std::string who_made_what(const RanksByCall& ranks_by_call);

// FNV-1a; 0 for nothing.
uint64_t hash_of(std::string_view text);
uint64_t hash_of(Counts counts);

}  // namespace lockstep::comm
