#include "lockstep/trace/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::trace {
namespace {

using ::testing::HasSubstr;

Event event(int rank, std::string_view name, double start_s, double duration_s, int stage = -1, int microbatch = -1) {
  Event result{.rank = rank, .start_s = start_s, .duration_s = duration_s, .stage = stage, .microbatch = microbatch};
  result.set_name(name);
  return result;
}

// Two stages, one micro-batch, each rank one second forward and two backward, from `at` on.
std::vector<Event> step(double at, double slower = 1) {
  return {event(0, "forward", at, slower, 0, 0),          event(1, "forward", at + slower, 1, 1, 0),
          event(1, "backward", at + slower + 1, 2, 1, 0), event(1, "optimizer_step", at + slower + 3, 0.5),
          event(0, "backward", at + slower + 3, 2, 0, 0), event(0, "optimizer_step", at + slower + 5, 0.5)};
}

std::vector<Event> joined(std::vector<std::vector<Event>> parts) {
  std::vector<Event> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(Compare, ARunThatWentAsPredictedHasNoErrors) {
  const auto recorded = joined({step(10), step(20), step(30)});
  const TraceComparison found = compare(step(0), recorded);
  EXPECT_EQ(found.difference, "");
  for (const Term& term : found.terms) EXPECT_NEAR(term.error(), 0, 1e-12) << term.name;
  EXPECT_NEAR(found.measured.makespan_s(), 6.5, 1e-12);
  EXPECT_NEAR(found.measured.bubble_share(), 1 - 7.0 / 13, 1e-12);
}

TEST(Compare, TermsAreOfTheMedianStepAndWaitsNameWhomTheyWaitedFor) {
  const auto recorded = joined({step(0, 5), step(20, 2), step(40, 3), step(60, 2)});
  const TraceComparison found = compare(step(0), recorded);
  EXPECT_EQ(found.difference, "");
  for (const Term& term : found.terms) {
    if (term.name == "forward") EXPECT_DOUBLE_EQ(term.measured, 1.5);
    if (term.name == "step") EXPECT_DOUBLE_EQ(term.measured, 7.5);
    if (term.name == "backward") EXPECT_DOUBLE_EQ(term.error(), 0);
  }
  ASSERT_EQ(found.waits.size(), 2u);
  EXPECT_EQ(found.waits[0].rank, 0);
  EXPECT_DOUBLE_EQ(found.waits[0].seconds, 3);
  EXPECT_EQ(found.waits[0].before.name(), "backward");
  EXPECT_EQ(found.waits[0].waited_for, 1);
  EXPECT_EQ(found.waits[1].rank, 1);
  EXPECT_DOUBLE_EQ(found.waits[1].seconds, 2);
  EXPECT_EQ(found.waits[1].waited_for, 0);
}

// Ranks 0 and 2 are one pipeline, 1 and 3 another, whose last rank is later.
TEST(Compare, WaitsAreForTheRankOfTheSamePipeline) {
  std::vector<Event> events;
  for (const int pipeline : {0, 1}) {
    for (Event event : step(0)) {
      event.rank = 2 * event.rank + pipeline;
      if (event.rank == 2 && event.name() == "backward") event.duration_s -= 0.25;  // so rank 3 ends last
      events.push_back(event);
    }
  }
  const TraceComparison found = compare(events, events);
  for (const Wait& wait : found.waits) {
    if (wait.before.name() == "backward") EXPECT_EQ(wait.waited_for, wait.rank + 2);
    if (wait.before.name() == "forward") EXPECT_EQ(wait.waited_for, wait.rank - 2);
  }
  EXPECT_GE(found.waits.size(), 4u);
}

TEST(Compare, AnActionThatWasNotPredictedIsNamed) {
  auto recorded = joined({step(0), step(10)});
  EXPECT_EQ(compare(step(0), recorded).difference, "");
  recorded[8].microbatch = 1;
  EXPECT_THAT(
      compare(step(0), recorded).difference,
      HasSubstr("rank 1, action 1: backward of stage 1, micro-batch 1 where backward of stage 1, micro-batch 0"));
  recorded = step(0);
  recorded.erase(recorded.begin() + 4);
  EXPECT_THAT(compare(step(0), recorded).difference, HasSubstr("rank 0, action 1: optimizer_step where backward"));
}

TEST(Compare, WhatLiesWithinAnActionAndStepsThatAreCutAreLeftOut) {
  auto recorded = joined({step(0), step(10), step(20)});
  recorded.push_back(event(0, "recompute", 14.5, 0.5, 0, 0));
  recorded.push_back(event(1, "reduce_gradient", 14, 0, 1));
  recorded.erase(recorded.begin());                      // the ring forgot the beginning
  recorded.push_back(event(1, "forward", 30, 1, 1, 0));  // and a step has just begun
  EXPECT_EQ(steps_of(recorded).size(), 3u);
  EXPECT_EQ(compare(step(0), recorded).difference, "");
}

TEST(Compare, RefusesTracesThatCannotBeLaidOver) {
  EXPECT_THROW(compare(step(0), {}), InvalidArgument);
  EXPECT_THROW(compare({}, step(0)), InvalidArgument);
  EXPECT_THROW(compare(step(0), joined({step(0), {event(2, "optimizer_step", 0, 1)}})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::trace
