// For schedules written down as a sequence of "the next forward of this stage", "the next input gradient of that":
// keeps count of which micro-batch is next.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

class CountedActions {
 public:
  explicit CountedActions(int microbatches) : microbatches_(microbatches) {}

  // The next action of the kind on the stage. Once all micro-batches had theirs it is counted, not added.
  void add(Action::Kind kind, int stage) { add_as(kind, kind, stage); }

  // The same, with the number taken from the count of another kind.
  void add_as(Action::Kind kind, Action::Kind counted_as, int stage) {
    const int microbatch = next_[{counted_as, stage}]++;
    if (microbatch < microbatches_) add_action({kind, stage, microbatch});
  }

  void add_action(const Action& action) { actions_.push_back(action); }
  void mark_overlap() { actions_.back().overlaps_next = true; }

  int count(Action::Kind kind, int stage) const {
    const auto found = next_.find({kind, stage});
    return found == next_.end() ? 0 : found->second;
  }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  int microbatches_;
  std::map<std::pair<Action::Kind, int>, int> next_;
  std::vector<Action> actions_;
};

}  // namespace lockstep::schedule
