// What makes a table of one stage a schedule: every micro-batch once through each kind of work, each piece of work
// after what it needs, and one reduction and one step after all of it.
#include <map>

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

namespace {

using Kind = Action::Kind;

bool is_per_microbatch(Kind kind) {
  using enum Action::Kind;
  return kind == forward || kind == recompute || kind == backward || kind == input_grad || kind == weight_grad;
}

bool is_supported(Kind kind) {
  return is_per_microbatch(kind) || kind == Kind::reduce_gradient || kind == Kind::optimizer_step;
}

class Validator {
 public:
  explicit Validator(const std::vector<Action>& actions, int microbatches)
      : actions_(actions), microbatches_(microbatches) {}

  std::vector<Problem> run() {
    for (size_t i = 0; i < actions_.size(); ++i) check_alone(i);
    if (!problems_.empty()) return problems_;  // what follows looks actions up by what they are
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch) check_microbatch(microbatch);
    const Action reduce{Kind::reduce_gradient, 0}, step{Kind::optimizer_step};
    require(reduce);
    require(step);
    require_order(reduce, step);
    return problems_;
  }

 private:
  void problem(const Action& action, const std::string& rule) {
    problems_.push_back({"rank 0", to_string(action), rule});
  }

  void check_alone(size_t index) {
    const Action& action = actions_[index];
    const int last = microbatches_ - 1;
    if (!is_supported(action.kind)) {
      problem(action, text(name(action.kind), " is not supported by this version"));
    } else if (action.stage != (action.kind == Kind::optimizer_step ? -1 : 0)) {
      problem(action, action.kind == Kind::optimizer_step ? "the step is the rank's and has no stage"
                                                          : "the only stage of the table is 0");
    } else if (is_per_microbatch(action.kind) && (action.microbatch < 0 || action.microbatch > last)) {
      problem(action, text("micro-batches are numbered from 0 to ", last));
    } else if (!is_per_microbatch(action.kind) && action.microbatch != -1) {
      problem(action, text(name(action.kind), " belongs to no micro-batch"));
    } else if (!position_.emplace(action, index).second) {
      problem(action, "stands twice in the list");
    }
  }

  // Forward, perhaps recompute, then backward or its two halves, all before the reduction.
  void check_microbatch(int microbatch) {
    const auto of = [&](Kind kind) { return Action{kind, 0, microbatch}; };
    const Action forward = of(Kind::forward), recompute = of(Kind::recompute), backward = of(Kind::backward);
    const Action input_grad = of(Kind::input_grad), weight_grad = of(Kind::weight_grad);
    const Action reduce{Kind::reduce_gradient, 0};
    require(forward);
    require_order(forward, recompute);
    if (has(input_grad) || has(weight_grad)) {
      require(input_grad);
      require(weight_grad);
      if (has(backward)) problem(backward, text("is done already by ", to_string(input_grad)));
    } else {
      require(backward);
    }
    for (const Action& first_gradient : {backward, input_grad}) {
      require_order(forward, first_gradient);
      require_order(recompute, first_gradient);
    }
    require_order(input_grad, weight_grad);
    for (const Action& last_gradient : {backward, weight_grad}) require_order(last_gradient, reduce);
  }

  bool has(const Action& action) const { return position_.contains(action); }

  void require(const Action& action) {
    if (!has(action)) problem(action, "is missing");
  }

  // When both are there.
  void require_order(const Action& first, const Action& second) {
    if (!has(first) || !has(second)) return;
    if (position_.at(first) > position_.at(second)) problem(second, text("stands before ", to_string(first)));
  }

  const std::vector<Action>& actions_;
  const int microbatches_;
  std::map<Action, size_t> position_;
  std::vector<Problem> problems_;
};

}  // namespace

std::vector<Problem> validate(const Table& table) {
  if (table.ranks != 1 || table.rank_of_stage.size() != 1) {
    return {{"stages", text(table.rank_of_stage.size()), "tables of several stages are not supported by this version",
             "1"}};
  }
  if (table.rank_of_stage[0] != 0 || table.actions_by_rank.size() != 1) {
    return {{"ranks", text(table.actions_by_rank.size()),
             "a table has one list of actions per rank, and stage 0 is rank 0's", "1"}};
  }
  return Validator(table.actions_by_rank[0], table.microbatches).run();
}

}  // namespace lockstep::schedule
