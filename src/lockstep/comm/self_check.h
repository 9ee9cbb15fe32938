// What each operation means, written as plainly as possible, and a way to hold a group to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// One operation on values that every rank can compute for all ranks.
struct Exercise {
  Operation operation = Operation::all_reduce;  // send and receive together: a message to the next rank
  DataType type = DataType::f32;
  Reduction reduction = Reduction::sum;
  int64_t count = 1;  // as in Call; of one rank's slice in reduce_scatter and all_gather
  int root = 0;
  bool registered = false;  // memory from the group, not the heap
  bool in_place = false;    // reduce_scatter and all_gather: the slice is part of the whole
  uint64_t seed = 0;
};
std::string describe(const Exercise& exercise);

// Elements of `type`, of any bits but signalling NaN: rank's input of the exercise.
std::vector<char> input_of(const Exercise& exercise, int rank, int size);

// What rank's output must be: bit for bit, but any NaN for a NaN.
std::vector<char> expected_output(const Exercise& exercise, int rank, int size);

// The exercise under way on one rank; every rank of the group makes the same.
class StartedExercise {
 public:
  StartedExercise(ProcessGroup& group, const Exercise& exercise, bool asynchronous);
  // Waits. Returns what is wrong: empty if nothing is.
  std::string finish();

 private:
  void make_call(ProcessGroup& group, bool asynchronous);

  Exercise exercise_;
  int rank_, size_;
  Registered registered_;
  std::vector<char> heap_;
  char *input_ = nullptr, *output_ = nullptr;
  std::vector<Work> works_;
};

}  // namespace lockstep::comm
