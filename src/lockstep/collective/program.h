// A collective operation as data: for every rank the list of its steps. One value is executed (comm/), priced (cost/),
// proven (interpret.h), counted (count.h) and drawn (draw.h).
//
//   ring all_reduce of 3 ranks, pieces 0 1 2        round 0            round 1            ...
//     rank 0   send piece 0 to 1, reduce piece 2 from 2    send piece 2, reduce piece 1
//
// Pieces. What an operation works on is cut into numbered pieces, the same on all ranks:
//   whole      broadcast, reduce, all_reduce: a vector of n elements in `pieces` parts (piece_sizes says how)
//   per_rank   scatter, gather, all_gather, reduce_scatter: piece r is rank r's block
//   per_pair   all_to_all: piece s * ranks + d is what rank s sends to rank d
// Sizes are no part of a program: they are given when it is used, one count of elements for each piece, so any length
// works, and the uneven variants (all_gather of different lengths and the like) are the same programs. Every rank must
// know all sizes of the pieces that it sends, holds or receives. A piece may be empty; a message whose pieces are all
// empty is not sent: both sides know.
//
// Buffers. A rank has three: input and output as the operation defines them, and scratch. Each holds the pieces that
// its `Held` lists, one after another without gaps:
//   broadcast        input: all pieces, at the root only      output: all pieces
//   reduce           input: all pieces                        output: all pieces, at the root only
//   all_reduce       input: all pieces                        output: all pieces
//   scatter          input: all pieces, at the root only      output: piece `rank`
//   gather           input: piece `rank`                      output: all pieces, at the root only
//   all_gather       input: piece `rank`                      output: all pieces
//   reduce_scatter   input: all pieces                        output: piece `rank`
//   all_to_all       input: pieces rank * ranks + d           output: pieces s * ranks + rank, for s = 0, 1, ...
// No step writes input. In place: every program but all_to_all's is also right when a rank's piece is one memory in
// input and output (all_gather: input is a slice of output; reduce_scatter: output is a slice of input); a copy of a
// piece onto itself is then nothing to do.
//
// Rounds. A rank's steps are ordered by round; a message is sent and received in the same round. In a round a rank may
// post all its receives and sends at once and then wait for all: no program needs buffering to make progress.
//   - sends, and the sources of other steps, read what was there before the round
//   - receive and copy write nothing that a step of the same round reads or writes
//   - receive_reduce may write what a send of the same round reads (two ranks exchange and add): the value leaves first
//   - several receive_reduce of one round may have one target: source is the target in all but the first, and their
//     operands are added together (see Rounding)
// Messages from one rank to another arrive in order: the k-th send meets the k-th receive.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::collective {

enum class Operation : uint8_t {
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  scatter,
  gather,
  all_to_all
};
inline constexpr int kOperations = 8;
std::string_view name(Operation operation);        // "all_reduce"
Operation parse_operation(std::string_view text);  // throws InvalidArgument with the names there are
bool has_root(Operation operation);                // broadcast, reduce, scatter, gather
bool reduces(Operation operation);                 // reduce, all_reduce, reduce_scatter

enum class Division : uint8_t { whole, per_rank, per_pair };
Division division(Operation operation);

// Where sums of low-precision types are rounded.
//   none      nothing is added
//   once      all ranks' values of an element meet in one round at one rank: they are added in a wide type, in a
//             balanced tree over the ranks ((r0+r1)+(r2+r3))..., and rounded once. Each message carries one rank's
//             input
//   per_hop   each receive_reduce rounds; the operand of the lower rank of the two stands left
// The results are the same bits on all ranks either way. An average is the sum, divided by each rank in its output.
enum class Rounding : uint8_t { none, once, per_hop };
std::string_view name(Rounding rounding);  // "per_hop"

enum class Buffer : uint8_t { input, output, scratch };
std::string_view name(Buffer buffer);

// `run` pieces that stand next to each other in a buffer, from `piece` on.
struct Chunk {
  Buffer buffer = Buffer::input;
  int piece = 0;
  int run = 1;
  bool operator==(const Chunk&) const = default;
};

// The pieces of a buffer, in this order: first, first + stride, ... (`count` of them).
struct Held {
  int first = 0, stride = 1, count = 0;
  // Place of `piece` among them; -1: not there.
  int slot(int piece) const;
  bool operator==(const Held&) const = default;
};

struct Step {
  enum class Kind : uint8_t {
    send,            // source -> peer
    receive,         // peer -> target
    receive_reduce,  // target = source and what comes from peer, reduced
    copy             // target = source
  };
  Kind kind = Kind::send;
  int peer = -1;  // copy: none
  Chunk source;   // receive: unused
  Chunk target;   // send: unused
  int round = 0;
  bool operator==(const Step&) const = default;
};
std::string_view name(Step::Kind kind);

struct Program {
  Operation operation = Operation::all_reduce;
  std::string algorithm;  // "ring"
  int ranks = 1;
  int root = 0;  // of operations that have one
  int pieces = 1;
  int rounds = 0;
  Rounding rounding = Rounding::none;
  std::vector<std::vector<Step>> steps_by_rank;
  std::vector<std::array<Held, 3>> held_by_rank;  // by Buffer

  const Held& held(int rank, Buffer buffer) const {
    return held_by_rank[static_cast<size_t>(rank)][static_cast<size_t>(buffer)];
  }
};

// Elements of every piece when the operation is called with `count` elements:
//   whole      count is the vector's length; cut by mesh::split (when it does not divide, the first are one longer)
//   per_rank   each rank's block has count elements; per_pair: each pair's
// Uneven variants write the list themselves: ranks counts (per_rank), or ranks * ranks, by source and then destination.
std::vector<int64_t> piece_sizes(const Program& program, int64_t count);

// Where a rank's chunks are, for given sizes. All in elements.
class Layout {
 public:
  // throws InvalidArgument unless there is one size, not negative, for each piece
  Layout(const Program& program, std::span<const int64_t> sizes, int rank);

  mesh::Range range(const Chunk& chunk) const;
  int64_t length(Buffer buffer) const { return starts_[static_cast<size_t>(buffer)].back(); }

 private:
  std::array<Held, 3> held_;
  std::array<std::vector<int64_t>, 3> starts_;  // by slot, and the end
};

// What an algorithm is asked for.
struct Shape {
  int ranks = 1;
  int root = 0;
  std::vector<int> host_of_rank;  // empty: all on one host
};

struct Algorithm {
  std::string_view name;
  Operation operation;
  Program (*make)(const Shape& shape);
  std::vector<Problem> (*check)(const Shape& shape);  // why `make` cannot serve this shape; empty: it can
};

// Where an algorithm of sums rounds, which is the same for every shape.
Rounding rounding(const Algorithm& algorithm);

// A new algorithm is one file, or a function in its family's, and one line in the list behind this.
std::span<const Algorithm> algorithms();

// The program of a named algorithm.
//   throws   InvalidArgument: no such algorithm of this operation (names those there are), or a shape it cannot serve
Program make_program(Operation operation, std::string_view algorithm, const Shape& shape);

}  // namespace lockstep::collective
