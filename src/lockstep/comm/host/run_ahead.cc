// Short broadcasts that repeat the call before them, as loops make them: whoever makes one says so (`repeated`) and
// meets nobody. The root puts the data into its next lines and returns; the others wait for the root only, and say now
// and then what they have taken, since the lines are a ring.
//
// What differs is found all the same. A rank that makes another call instead announces it in a slot and meets
// everybody, so it sees that they repeat, or they see its slot: those who wait for it as the root, or meet next, at
// once; a root that runs ahead at the latest when its lines are full. Nobody gets past a call in which they differ.
//
// Why lines and slots are not overwritten too early: a line is used again when everyone has said that it took it. The
// first repeat uses lines of earlier repeats; everyone has announced the call in between, and so had done with those.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/comm/host/execution.h"

namespace lockstep::comm::host {
namespace {

constexpr auto kLineBytes = static_cast<int64_t>(sizeof(AheadLine::data));

// move(data of the line, place of its bytes in the whole, how many): of a constant size for all lines but the last.
template <class Move>
void for_each_line(AheadLine* line, int64_t bytes, Move move) {
  int64_t done = 0;
  for (; done + kLineBytes <= bytes; ++line, done += kLineBytes) {
    move(line->data, done, std::integral_constant<size_t, kLineBytes>());
  }
  if (done < bytes) move(line->data, done, static_cast<size_t>(bytes - done));
}

}  // namespace

bool Collectives::Execution::repeats_broadcast() const {
  return call.operation == Operation::broadcast && group.repeats_.met != 0 && is_inline() &&
         slot(rank()).call.same_call(place.call);
}

void Collectives::Execution::run_ahead() {
  Repeats& repeats = group.repeats_;
  if (repeats.lines == 0) start_repeats();
  view().mine().repeated.store(place.number, std::memory_order_release);
  rung = false;
  AheadLine* const lines = &view().member(call.peer).ahead[repeats.next_line];
  if (is_root()) {
    if (place.number > repeats.room_until) await_room();
    put_ahead(lines);
  } else {
    take_ahead(lines);
  }
  repeats.next_line += repeats.lines;
  if (repeats.next_line == repeats.all_lines) repeats.next_line = 0;
  ring();
}

void Collectives::Execution::start_repeats() {
  Repeats& repeats = group.repeats_;
  repeats.lines = static_cast<int>(std::max<int64_t>(1, (bytes() + kLineBytes - 1) / kLineBytes));
  repeats.calls = static_cast<uint64_t>(std::min(kAheadCalls, kAheadLines / repeats.lines));
  repeats.all_lines = static_cast<int>(repeats.calls) * repeats.lines;
  repeats.room_until = repeats.met + repeats.calls;
  repeats.tell_at = repeats.met + repeats.calls / 4;
}

// Whether rank r has yet to take what lies where the root wants to put this call's data.
bool Collectives::Execution::is_behind(int r) const {
  const uint64_t taken = view().member(r).taken.load(std::memory_order_acquire);
  return r != call.peer && std::max(taken, group.repeats_.met) + group.repeats_.calls < place.number;
}

// Where the lines are full, it waits until half of them are free: a rank that shares this one's core takes many at a
// time.
void Collectives::Execution::await_room() {
  Repeats& repeats = group.repeats_;
  const auto taken_by = [this](int r) {
    return r == rank() ? place.number : view().member(r).taken.load(std::memory_order_acquire);
  };
  const auto missing = [this](int r) { return is_behind(r); };
  bool full = false;
  for (int r = 0; r < size(); ++r) full = full || is_behind(r);
  uint64_t taken_by_all = place.number;
  for (int r = 0; r < size(); ++r) {
    if (full) await(r, [&](int other) { return taken_by(other) + (repeats.calls + 1) / 2 >= place.number; }, missing);
    taken_by_all = std::min(taken_by_all, taken_by(r));
  }
  repeats.room_until = taken_by_all + repeats.calls;
}

void Collectives::Execution::put_ahead(AheadLine* lines) {
  const char* const from = input();
  for_each_line(lines, bytes(), [from](char* data, int64_t at, auto n) { std::memcpy(data, from + at, n); });
  lines->number.store(place.number, std::memory_order_release);
  rung = false;
}

void Collectives::Execution::take_ahead(AheadLine* lines) {
  const auto is_there = [&] { return lines->number.load(std::memory_order_acquire) == place.number; };
  const auto arrived = [&](int root) {
    return is_there() || other_slot(root).sequence.load(std::memory_order_acquire) > group.repeats_.met;
  };
  // A root that has come waits for others, if at all.
  const auto missing = [&](int r) {
    return r == call.peer ? view().member(r).repeated.load() < place.number : is_behind(r);
  };
  await(call.peer, arrived, missing);
  if (!is_there()) [[unlikely]]
    raise_mismatch(place.number);
  char* const to = output();
  for_each_line(lines, bytes(), [to](const char* data, int64_t at, auto n) { std::memcpy(to + at, data, n); });
  if (place.number < group.repeats_.tell_at) return;
  view().mine().taken.store(place.number, std::memory_order_release);
  group.repeats_.tell_at = place.number + group.repeats_.calls / 4;
  rung = false;
}

}  // namespace lockstep::comm::host
