// What each operation means, written as plainly as possible, and a way to hold a group to it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/collective/program.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// One operation on values that every rank can compute for all ranks.
struct Exercise {
  Operation operation = Operation::all_reduce;  // send and receive together: a message to the next rank
  DataType type = DataType::f32;
  Reduction reduction = Reduction::sum;
  int64_t count = 1;  // of one rank's part where a buffer has one for each rank, else of the buffer
  int root = 0;
  bool registered = false;  // memory from the group, not the heap
  bool in_place = false;    // where the operation allows it; the root's, if it has one
  bool uneven = false;      // reduce_scatter, all_gather, all_to_all, batches: parts of 0 to 2 * count elements
  bool batched = false;     // messages: one to and one from every other rank, in any order; the result is all_to_all's
  uint64_t seed = 0;
  std::string_view algorithm{};  // see CallOptions
};
std::string describe(const Exercise& exercise);

// What `from` has for `to`, which in a reduce_scatter depends on `to` only and in an all_gather on `from`.
int64_t part_count(const Exercise& exercise, int from, int to);
// Elements of rank's buffers; 0 where they are not looked at.
int64_t input_count(const Exercise& exercise, int rank, int size);
int64_t output_count(const Exercise& exercise, int rank, int size);

// The program of the exercise's algorithm, which is not empty and not native, with all ranks on one host; the elements
// of each of its pieces.
collective::Program program_of(const Exercise& exercise, int size);
std::vector<int64_t> piece_sizes(const Exercise& exercise, const collective::Program& program);

// Elements of `type`, of any bits but signalling NaN: rank's input of the exercise.
std::vector<char> input_of(const Exercise& exercise, int rank, int size);

// What rank's output must be: bit for bit, but any NaN for a NaN. Where the algorithm's program rounds per hop, that is
// what the program gives when collective::interpret runs it.
std::vector<char> expected_output(const Exercise& exercise, int rank, int size);
// Whether element i is as expected.
bool same_element(DataType type, const char* a, const char* b, int64_t i);

// The exercise under way on one rank; every rank of the group makes the same.
class StartedExercise {
 public:
  StartedExercise(ProcessGroup& group, const Exercise& exercise, bool asynchronous);
  // Waits. Returns what is wrong: empty if nothing is.
  std::string finish();

 private:
  void place_buffers(char* memory);
  void make_call(ProcessGroup& group, bool asynchronous);
  void send_around(ProcessGroup& group, bool asynchronous);
  void exchange_in_batch(ProcessGroup& group, bool asynchronous);
  int64_t part_begin(bool of_input, int r) const;

  Exercise exercise_;
  int rank_, size_;
  Registered registered_;
  std::vector<char> heap_;
  Buffer input_, output_;
  std::vector<Work> works_;
};

// Every operation on every type with every reduction, even and uneven, in turns in place, in registered memory and with
// another root. The same list for the same `size` and `count`.
std::vector<Exercise> every_exercise(int size, int64_t count);

// Every operation by each of its algorithms, on every type with every reduction, even and uneven, against its
// definition; what is counted as sent and received, against collective::count. Returns what is wrong: empty if nothing
// is. For groups whose ranks are on one host.
//   types  empty: all
std::string check_algorithms(ProcessGroup& group, int64_t count, std::span<const DataType> types = {});

// A program of random operations on `world` and on groups of some of its ranks that overlap. Every rank makes the same
// calls in the same order, each blocking or not as it likes. Returns what is wrong: empty if nothing is.
std::string run_random_program(ProcessGroup& world, uint64_t seed);

// Bursts of short broadcasts of a few sizes and roots on two groups, blocking or not, some with other calls in between.
std::string run_broadcast_bursts(ProcessGroup& world, uint64_t seed);

}  // namespace lockstep::comm
