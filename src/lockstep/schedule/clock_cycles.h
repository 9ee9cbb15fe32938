// The waves of a forward pass in which everything takes one cycle: in cycle k run all (micro-batch i, stage j) with
// i + j = k. M + K - 1 cycles, in each the stages rising.
//
//   for (const Wave& wave : clock_cycles(3, 3)) ...      {(0,0)} {(1,0),(0,1)} {(2,0),(1,1),(0,2)} {(2,1),(1,2)}
//   {(2,2)}
//
// No micro-batch gives no cycle. A negative number of micro-batches, or no stage, is an error when the first cycle is
// asked for, as in a generator.
//   source   Huang et al. 2019 (GPipe); torchgpipe's clock_cycles
#pragma once

#include <iterator>
#include <utility>
#include <vector>

namespace lockstep::schedule {

struct Cell {
  int microbatch = 0, stage = 0;
  bool operator==(const Cell&) const = default;
};
using Wave = std::vector<Cell>;

class ClockCycles {
 public:
  ClockCycles(int microbatches, int stages) : microbatches_(microbatches), stages_(stages) {}

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Wave;
    using difference_type = std::ptrdiff_t;
    using pointer = const Wave*;
    using reference = Wave;

    Iterator(const ClockCycles* cycles, int cycle) : cycles_(cycles), cycle_(cycle) {}
    Wave operator*() const { return cycles_->wave(cycle_); }
    Iterator& operator++() {
      ++cycle_;
      return *this;
    }
    Iterator operator++(int) { return {cycles_, cycle_++}; }
    bool operator==(const Iterator& other) const { return cycle_ == other.cycle_; }

   private:
    const ClockCycles* cycles_;
    int cycle_;
  };

  Iterator begin() const;  // throws InvalidArgument
  Iterator end() const { return {this, microbatches_ == 0 ? 0 : microbatches_ + stages_ - 1}; }

 private:
  Wave wave(int cycle) const;
  int microbatches_, stages_;
};

inline ClockCycles clock_cycles(int microbatches, int stages) {
  return {microbatches, stages};
}

}  // namespace lockstep::schedule
