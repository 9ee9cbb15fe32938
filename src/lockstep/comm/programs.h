// The step programs of one group: which algorithm serves a call, and its program, made once and kept.
//
// An algorithm is named in calls and numbered in fingerprints: kNative is the backend's own way, kAnnounced a call
// whose data travels with its announcement (where a backend has that), the others are their operation's in
// collective::algorithms(), counted from 1.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/collective/choose.h"
#include "lockstep/collective/program.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

inline constexpr uint8_t kNative = 0;
inline constexpr uint8_t kAnnounced = 63;  // the highest that a fingerprint holds

// "ring"; "native", "announced"
std::string_view algorithm_name(Operation operation, uint8_t algorithm);

class Programs {
 public:
  struct Options {
    std::vector<int> host_of_rank;  // one for each rank of the group
    collective::RuleTable rules;    // for calls that name no algorithm; none: all of those are native
    int64_t announced_bytes = 0;    // calls of up to so many bytes that name none travel with their announcement
    bool native_adds_in_tree = false;
  };
  explicit Programs(Options options);

  // The same on every rank of a group whose ranks make the same call.
  //   throws  InvalidArgument for a name that the operation does not have, that cannot serve this group, or that does
  //           not add in the balanced tree where the call asks for that
  uint8_t choose(const Call& call) const;

  // Of an algorithm that choose() returned, neither native nor announced. Lives as long as this.
  const collective::Program& program(Operation operation, uint8_t algorithm, int root);

  void set_rules(collective::RuleTable rules) { options_.rules = std::move(rules); }
  const collective::RuleTable& rules() const { return options_.rules; }

 private:
  collective::Shape shape(int root) const;
  uint8_t chosen_by_rules(const Call& call) const;

  Options options_;
  int hosts_ = 1;
  std::map<std::tuple<Operation, uint8_t, int>, std::unique_ptr<const collective::Program>> made_;
};

// Elements of every piece of the program for a call.
//   sent_counts  of an uneven all_to_all: ranks * ranks, by source and then destination; otherwise not looked at
std::vector<int64_t> piece_sizes_of(const collective::Program& program, const Call& call, Counts sent_counts = {});

}  // namespace lockstep::comm
