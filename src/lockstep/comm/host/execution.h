// The state of one collective call while a rank executes it: meeting the others (collectives.cc) or not (run_ahead.cc),
// moving data from where it lies (move_data.cc) and over staging blocks (move_staged.cc), or as a step program says
// (move_by_program.cc).
#pragma once

#include <algorithm>
#include <array>

#include "lockstep/base/units.h"
#include "lockstep/comm/host/collectives.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm::host {

// Elements [begin, begin + count) of a buffer.
struct Part {
  int64_t begin = 0, count = 0;
};

struct Collectives::Execution {
  Collectives& group;
  const Call& call;
  const Patience& patience;
  Place place{};
  Deadline deadline{};
  bool rung = true;

  const GroupView& view() const { return group.view_; }
  int rank() const { return view().rank; }
  int size() const { return view().size(); }
  bool is_root() const { return call.peer == rank(); }
  int64_t count() const { return place.call.count; }
  int64_t bytes() const { return place.call.bytes(); }
  int64_t element_bytes() const { return element_size(place.call.type); }
  Slot& slot(int r) const { return view().member(r).slots[group.turn_]; }
  const Slot& other_slot(int r) const { return view().member(r).slots[1 - group.turn_]; }
  char* input() const { return static_cast<char*>(call.input.data); }
  char* output() const { return static_cast<char*>(call.output.data); }
  char* output_of(int r) const { return view().segment->decode(slot(r).address.output); }

  // -- who gives what to whom: what all ranks know once they have met -----------------------------------------------

  // Whether the others need this rank's input.
  bool gives() const {
    const bool only_root = call.operation == Operation::broadcast || call.operation == Operation::scatter;
    return call.operation != Operation::barrier && (!only_root || is_root());
  }
  // Rank r's part of the buffer that has one for each: reduce_scatter's and scatter's input, all_gather's and gather's
  // output.
  Part part_of(int r) const;
  // all_to_all: what `from` sends to `to`, in the input of the one and in the output of the other.
  Part sent_part(int from, int to) const;
  Part received_part(int to, int from) const;
  // The longest part of all.
  int64_t longest_count() const;
  // The most that any rank gives.
  int64_t given_bytes() const;
  bool is_native() const { return place.call.algorithm == kNative; }
  bool is_inline() const { return is_native() && given_bytes() <= kInlineBytes; }
  // Whether r's input came with its announcement. The same for all ranks but in an uneven all_to_all.
  bool slot_holds_input(int r) const;
  // r's input, where this rank can read it.
  const char* input_of(int r) const {
    return slot_holds_input(r) ? slot(r).data : view().segment->decode(slot(r).address.input);
  }
  bool streaming() const { return given_bytes() >= kStreamingBytes; }
  bool exposes_reachable_memory() const;
  bool all_reachable() const;

  // -- meeting ------------------------------------------------------------------------------------------------------
  void announce();
  void ring();
  void meet();
  void compare(int r);
  bool pairs_agree() const;
  void sync();
  // Until arrived(r).
  //   missing(other)  whether a report of a wait that fails names that rank
  template <class Arrived, class Missing>
  void await(int r, Arrived arrived, Missing missing);
  template <class Arrived>
  void await(int r, Arrived arrived) {
    await(r, arrived, [&](int other) { return !arrived(other); });
  }
  const Slot* announced_by(int r, uint64_t number) const;
  [[noreturn]] void raise_mismatch(uint64_t number);

  // -- not meeting --------------------------------------------------------------------------------------------------
  bool repeats_broadcast() const;
  bool is_behind(int r) const;
  void run_ahead();
  void start_repeats();
  void await_room();
  void put_ahead(AheadLine* lines);
  void take_ahead(AheadLine* lines);

  // -- moving data --------------------------------------------------------------------------------------------------
  void move_data();
  void move_directly();
  void reduce_share();
  void gather_parts();
  void exchange_parts();

  void move_by_program();

  void move_staged();
  void stage_reduction();
  void stage_parts();
  void take_staged_parts(int half, int64_t begin, int64_t block);
  void stage_blocks();

  // The reduction of `n` elements at address(r) of every rank r, to `to`, or to that address of every rank.
  template <class Address>
  void reduce_to(void* to, Address address, int64_t n) {
    std::array<const void*, kMaxRanks> inputs;
    for (int r = 0; r < size(); ++r) inputs[static_cast<size_t>(r)] = address(r);
    reduce(place.call.type, call.reduction, {inputs.data(), static_cast<size_t>(size())}, {&to, 1}, n, false);
  }
  template <class Address>
  void reduce_to_all(Address address, int64_t n, bool streaming) {
    std::array<const void*, kMaxRanks> inputs;
    std::array<void*, kMaxRanks> outputs;
    for (int r = 0; r < size(); ++r) inputs[static_cast<size_t>(r)] = outputs[static_cast<size_t>(r)] = address(r);
    const auto ranks = static_cast<size_t>(size());
    reduce(place.call.type, call.reduction, {inputs.data(), ranks}, {outputs.data(), ranks}, n, streaming);
  }
};

template <class Arrived, class Missing>
void Collectives::Execution::await(int r, Arrived arrived, Missing missing) {
  if (patience.spin_s > 0 ? look_briefly([&] { return arrived(r); }) : arrived(r)) return;
  ring();
  const WaitEnd end = wait_until(
      view().member(r).collective_bell, patience_here(view(), patience), deadline, [&] { return arrived(r); },
      [&] { return group.health_.disturbed(r); });
  if (end == WaitEnd::ready) [[likely]]
    return;
  std::vector<int> awaited;
  for (int other = 0; other < size(); ++other) {
    if (missing(other)) awaited.push_back(other);
  }
  group.health_.raise(end, awaited, place, deadline);
}

// This rank's share of `count` elements; those of different ranks share no cache line.
inline Part share_of(int rank, int size, int64_t count, int64_t element_bytes) {
  const int64_t share = round_up((count + size - 1) / size, kCacheLine / element_bytes);
  const int64_t begin = std::min(rank * share, count);
  return {begin, std::min(begin + share, count) - begin};
}

}  // namespace lockstep::comm::host
