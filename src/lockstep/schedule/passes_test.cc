#include "lockstep/schedule/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/schedule/dependencies.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/schedule/validate.h"

namespace lockstep::schedule {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> messages(const Table& table, const Rules& rules = {}) {
  std::vector<std::string> result;
  for (const Problem& problem : validate(table, rules)) result.push_back(problem.message());
  return result;
}

// Every kind in a few shapes that it takes.
template <class Use>
void for_each_table(Use use) {
  for (const Generator& generator : generators()) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int microbatches : {1, 2, 3, 4, 6, 8, 12}) {
        for (const int chunks : {1, 2, 4}) {
          const Shape shape{ranks, microbatches, chunks};
          if (!generator.check(shape).empty()) continue;
          SCOPED_TRACE(text(generator.name, " ", ranks, " ", microbatches, " ", chunks));
          use(generator.make(shape));
        }
      }
    }
  }
}

TEST(AddCommunication, PutsASendAfterItsProducerAndAReceiveAtTheOtherRank) {
  EXPECT_EQ(to_string(add_communication(make_table("1f1b", {2, 2}))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(AddCommunication, KeepsPairsTogether) {
  const std::string csv = to_string(add_communication(make_table("dualpipe_v", {2, 4, 2})));
  EXPECT_THAT(csv, ::testing::HasSubstr("(0F3;3B1)OVERLAP_F_B"));
  EXPECT_EQ(to_string(parse_table(csv)), csv);
}

// PIPE-02: channels that hold nothing, between two ranks with four stages and between four ranks, and everywhere else.
TEST(AddCommunication, NeverDeadlocksEvenWhenSendsBlock) {
  for_each_table([](const Table& table) {
    const Table whole = add_communication(table);
    EXPECT_THAT(messages(whole, {.sends = Sends::posted}), IsEmpty());
    EXPECT_THAT(messages(whole, {.sends = Sends::blocking}), IsEmpty());
  });
}

TEST(AddCommunication, RefusesATableThatHasItOrCannotGoOn) {
  const Table table = make_table("1f1b", {2, 2});
  EXPECT_THROW(add_communication(add_communication(table)), InvalidArgument);
  EXPECT_THROW(add_communication(parse_table("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0")), InvalidArgument);
}

// PIPE-05: interprets a table with values. An activation is the number of its micro-batch and of the stages it went
// through, a channel a queue; a receive takes the channel's first, whatever it is.
class Interpreter {
 public:
  explicit Interpreter(const Table& table) : table_(table), next_(static_cast<size_t>(table.ranks)) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < table_.ranks; ++rank) {
        const auto& actions = table_.actions_by_rank[static_cast<size_t>(rank)];
        size_t& next = next_[static_cast<size_t>(rank)];
        while (next < actions.size() && perform(actions[next], rank)) {
          ++next;
          moved = true;
        }
      }
    }
  }

  // Of the last stage: what arrived there as the micro-batch.
  std::map<int, std::pair<int, int>> outputs;
  // Of the first stage: for each micro-batch, whose gradient came back.
  std::map<int, int> gradients;

 private:
  struct Value {
    int microbatch, stages;
  };
  using Key = std::tuple<bool, int, int>;  // gradient or activation, stage whose output it is, micro-batch

  bool perform(const Action& action, int rank) {
    using enum Action::Kind;
    const int s = action.stage, m = action.microbatch, last = table_.stages() - 1;
    switch (action.kind) {
      case forward: {
        if (s > 0 && !values_.contains({false, s - 1, m})) return false;
        const Value in = s > 0 ? values_[{false, s - 1, m}] : Value{m, 0};
        values_[{false, s, m}] = {in.microbatch, in.stages + 1};
        if (s == last) outputs[m] = {in.microbatch, in.stages + 1};
        return true;
      }
      case backward:
      case input_grad: {
        if (s < last && !values_.contains({true, s + 1, m})) return false;
        const Value in = s < last ? values_[{true, s + 1, m}] : values_[{false, s, m}];
        values_[{true, s, m}] = in;
        if (s == 0) gradients[m] = in.microbatch;
        return true;
      }
      case send_activation:
        return send({false, s, m}, rank, s + 1);
      case send_gradient:
        return send({true, s, m}, rank, s - 1);
      case receive_activation:
        return receive({false, s - 1, m}, rank, s - 1);
      case receive_gradient:
        return receive({true, s + 1, m}, rank, s + 1);
      default:
        return true;
    }
  }

  bool send(const Key& key, int rank, int stage) {
    channels_[{rank, table_.rank_of_stage[static_cast<size_t>(stage)]}].push_back(values_.at(key));
    return true;
  }

  bool receive(const Key& key, int rank, int stage) {
    auto& channel = channels_[{table_.rank_of_stage[static_cast<size_t>(stage)], rank}];
    if (channel.empty()) return false;
    received_[key] = channel.front();
    values_[key] = channel.front();
    channel.pop_front();
    return true;
  }

  const Table& table_;
  std::vector<size_t> next_;
  std::map<Key, Value> values_, received_;
  std::map<std::pair<int, int>, std::deque<Value>> channels_;
};

TEST(AddCommunication, CarriesEachMicrobatchUnderItsOwnNumber) {
  for_each_table([](const Table& table) {
    const Table whole = add_communication(table);
    Interpreter interpreter(whole);
    interpreter.run();
    for (int m = 0; m < table.microbatches; ++m) {
      EXPECT_EQ(interpreter.outputs.at(m), std::pair(m, table.stages()));
      EXPECT_EQ(interpreter.gradients.at(m), m);
    }
  });
}

TEST(AddRecompute, RunsTheForwardAgainBeforeEachBackward) {
  EXPECT_EQ(to_string(add_recompute(make_table("1f1b", {1, 2}))), "0F0,0R0,0B0,0F1,0R1,0B1\n");
  for_each_table([](const Table& table) {
    const Table whole = add_recompute(table);
    EXPECT_THAT(messages(whole), IsEmpty());
    EXPECT_EQ(in_flight_peak(whole), in_flight_peak(table));
  });
}

// What is whole in memory is one micro-batch at a time; of the others only the stage's input is kept.
TEST(AddRecompute, LeavesOneMicrobatchWhole) {
  EXPECT_THAT(in_flight_peak(add_recompute(make_table("gpipe", {4, 8})), {.from = Lifetime::From::recompute}), Each(1));
  EXPECT_THAT(in_flight_peak(make_table("gpipe", {4, 8}), {.from = Lifetime::From::recompute}), Each(8));
}

TEST(AddStep, ReducesTheStagesInTheOrderOfTheirLastGradients) {
  EXPECT_EQ(to_string(add_step(make_table("looped_bfs", {1, 2, 2}))),
            "0F0,0F1,1F0,1F1,1B1,1B0,0B1,0B0,1REDUCE_GRAD,0REDUCE_GRAD,STEP\n");
  for_each_table([](const Table& table) { EXPECT_THAT(messages(add_step(table), {.whole_step = true}), IsEmpty()); });
}

TEST(AddSharding, KeepsAtMostSoManyStagesWhole) {
  EXPECT_EQ(to_string(add_sharding(add_step(make_table("looped_bfs", {1, 1, 2})), 1)),
            "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,1REDUCE_GRAD,0REDUCE_GRAD,0RESHARD,STEP\n");
  for_each_table([](const Table& table) {
    for (const int most : {1, 2, 3}) {
      const Table whole = add_sharding(add_step(add_communication(add_recompute(table))), most);
      EXPECT_THAT(messages(whole, {.sends = Sends::blocking, .whole_step = true}), IsEmpty());
      for (const auto& actions : whole.actions_by_rank) {
        int active = 0, most_seen = 0;
        bool pairs = false;
        for (const Action& action : actions) {
          active += (action.kind == Action::Kind::unshard) - (action.kind == Action::Kind::reshard);
          most_seen = std::max(most_seen, active);
          pairs = pairs || action.overlaps_next;
        }
        EXPECT_LE(most_seen, pairs ? std::max(most, 2) : most);
        EXPECT_EQ(active, 0);
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::schedule
