// ZB-V: two chunks per rank placed as a V (rank r has stages r and 2K-1-r), so that the rank with the first stage also
// has the last, and the weight gradients fill all gaps when F, I and W take equally long. As many micro-batches are
// alive as in 1F1B, on every rank.
//   source   Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 6; the order of PyTorch's ScheduleZBVZeroBubble
#include <algorithm>

#include "lockstep/schedule/kinds/alternate.h"
#include "lockstep/schedule/kinds/counted.h"
#include "lockstep/schedule/kinds/kinds.h"

namespace lockstep::schedule {

namespace {

using enum Action::Kind;

class Writer {
 public:
  // The schedule is defined from 2K-1 micro-batches on; fewer are those first ones of it.
  Writer(const Shape& shape, int rank)
      : ranks_(shape.ranks),
        rank_(rank),
        first_(rank),
        second_(2 * shape.ranks - 1 - rank),
        microbatches_(std::max(2 * shape.ranks - 1, shape.microbatches)),
        actions_(shape.microbatches) {}

  std::vector<Action> write() {
    warm_up();
    while (count(forward, second_) < count(forward, first_) || count(forward, first_) < microbatches_) {
      if (count(forward, first_) < microbatches_) actions_.add(forward, first_);
      whole_backward(first_);
      actions_.add(forward, second_);
      whole_backward(second_);
    }
    cool_down();
    return actions_.take();
  }

 private:
  int count(Action::Kind kind, int stage) const { return actions_.count(kind, stage); }

  void whole_backward(int stage) {
    actions_.add(input_grad, stage);
    actions_.add(weight_grad, stage);
  }

  void warm_up() {
    for (int i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) actions_.add(forward, first_);
    for (int i = 0; i < rank_; ++i) {
      actions_.add(forward, second_);
      actions_.add(forward, first_);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) {
      actions_.add(forward, second_);
      whole_backward(second_);
    }
  }

  void cool_down() {
    for (int i = 0; i < rank_; ++i) {
      actions_.add(input_grad, first_);
      actions_.add(input_grad, second_);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) whole_backward(first_);
    for (const int stage : {second_, first_}) {
      while (count(weight_grad, stage) < count(input_grad, stage)) actions_.add(weight_grad, stage);
    }
  }

  const int ranks_, rank_, first_, second_, microbatches_;
  CountedActions actions_;
};

}  // namespace

Table zero_bubble_v(const Shape& shape) {
  return table_of(shape, Placement::v, [&](int rank) { return Writer(shape, rank).write(); });
}

}  // namespace lockstep::schedule
