// DualPipeV: placed as ZB-V. In the steady state each forward is paired with a backward of the rank's other chunk, so
// that the communication inside one hides behind the computing of the other; a reader may also run the two in turn.
//   source   DeepSeek-AI 2024 (DeepSeek-V3, DualPipe) and its repository; the order of PyTorch's ScheduleDualPipeV
#include <deque>

#include "lockstep/schedule/kinds/alternate.h"
#include "lockstep/schedule/kinds/counted.h"
#include "lockstep/schedule/kinds/kinds.h"

namespace lockstep::schedule {

namespace {

using enum Action::Kind;

class Writer {
 public:
  Writer(const Shape& shape, int rank)
      : ranks_(shape.ranks),
        rank_(rank),
        microbatches_(shape.microbatches),
        first_(rank),
        second_(2 * shape.ranks - 1 - rank),
        actions_(shape.microbatches) {}

  std::vector<Action> write() {
    const int after = ranks_ - 1 - rank_;  // ranks after this one
    repeat(2 * after, [&] { actions_.add(forward, first_); });
    repeat(rank_ + 1, [&] {
      actions_.add(forward, first_);
      actions_.add(forward, second_);
    });
    repeat(after, [&] {
      input_half(second_);
      weight_half();
      actions_.add(forward, second_);
    });
    steady_state(microbatches_ - 2 * ranks_ + rank_ + 1);
    repeat(after, [&] {
      backward_of(second_);
      pair(second_, first_);
    });
    end(after);
    return actions_.take();
  }

 private:
  template <class Step>
  static void repeat(int times, Step step) {
    for (int i = 0; i < times; ++i) step();
  }

  void steady_state(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      if (i == 0 && rank_ == ranks_ - 1) {  // its backward is of the forward just before: nothing to overlap
        actions_.add(forward, first_);
        backward_of(second_);
      } else {
        pair(first_, second_);
      }
      pair(second_, first_);
    }
  }

  // No forwards are left: backwards, split from the middle on so that weight gradients fill the gaps.
  void end(int after) {
    const int rounds = rank_ + 1;
    bool split = false;
    for (int i = 0; i < rounds; ++i) {
      if (i == rounds / 2 && rank_ % 2 == 1) split = true;
      backward_or_half(second_, split);
      if (i == rounds / 2 && rank_ % 2 == 0) split = true;
      backward_or_half(first_, split);
    }
    repeat(after, [&] {
      weight_half();
      backward_or_half(first_, split);
    });
    repeat(rounds, [&] { weight_half(); });
  }

  void pair(int forward_stage, int backward_stage) {
    // A backward takes its number from the count of all input gradients, whole or half.
    actions_.add(forward, forward_stage);
    actions_.mark_overlap();
    backward_of(backward_stage);
  }

  void backward_of(int stage) { actions_.add_as(backward, input_grad, stage); }

  void input_half(int stage) {
    actions_.add(input_grad, stage);
    weights_left_.push_back({weight_grad, stage, actions_.count(input_grad, stage) - 1});
  }

  void backward_or_half(int stage, bool split) { split ? input_half(stage) : backward_of(stage); }

  void weight_half() {
    if (weights_left_.empty()) return;
    actions_.add_action(weights_left_.front());
    weights_left_.pop_front();
  }

  const int ranks_, rank_, microbatches_, first_, second_;
  CountedActions actions_;
  std::deque<Action> weights_left_;
};

}  // namespace

Table dualpipe_v(const Shape& shape) {
  return table_of(shape, Placement::v, [&](int rank) { return Writer(shape, rank).write(); });
}

}  // namespace lockstep::schedule
